#include "store.h"

#include <algorithm>
#include <random>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr const char* failure_key = "failure";
constexpr std::size_t tag_size = 9;  // of the random number in front of a gathered value

CollectiveInfo info(const Member& member) {
  return {.rank = member.rank, .world_size = member.size, .operation = "rendezvous", .name = {}};
}

// A failure in the table is one letter, 't' for a timeout, then `at`, a newline, and `what`.
std::string encode(const Failure& why) {
  std::string at = why.at;
  std::replace(at.begin(), at.end(), '\n', ' ');
  return fmt::format("{}{}\n{}", why.timeout ? 't' : ' ', at, why.what);
}

Failure decode(const std::string& text) {
  const auto newline = text.find('\n');
  return {.at = text.substr(1, newline - 1),
          .what = text.substr(newline + 1),
          .timeout = text[0] == 't'};
}

// The keys of gather(): the value of each rank, and rank 0's mark that all values are there.
std::string key_of_rank(const std::string& name, int rank) {
  return name + "/" + std::to_string(rank);
}
std::string completion_key(const std::string& name) { return name + " complete"; }

}  // namespace

Values Table::apply(const Request& request) {
  Values found;
  switch (request.operation) {
    case Request::Operation::put:
      found.insert(*values.try_emplace(request.key, request.value).first);
      break;
    case Request::Operation::set:
      found.emplace(request.key, values[request.key] = request.value);
      break;
    case Request::Operation::list:
      for (auto it = values.lower_bound(request.key);
           it != values.end() && it->first.starts_with(request.key); ++it)
        found.insert(*it);
      break;
    case Request::Operation::leave: break;
  }
  return found;
}

std::string Store::put(const std::string& key, const std::string& value) {
  return request({Request::Operation::put, key, value}).at(key);
}

void Store::set(const std::string& key, const std::string& value) {
  request({Request::Operation::set, key, value});
}

Values Store::list(const std::string& prefix) {
  return request({Request::Operation::list, prefix});
}

std::optional<Failure> Store::failure() {
  const Values found = list(failure_key);
  return found.empty() ? std::nullopt : std::optional(decode(found.begin()->second));
}

Failure Store::fail(const Failure& why) { return decode(put(failure_key, encode(why))); }

std::vector<std::string> Store::gather(const std::string& name, const std::string& value) {
  const auto deadline = deadline_after(member_.timeout);
  // A random number that no other process draws tells two processes of the same rank apart.
  const std::string mine = fmt::format("{:08x} {}", std::random_device()(), value);
  if (put(key_of_rank(name, member_.rank), mine) != mine)
    throw DistributedError(
        fmt::format("rendezvous at {}: another process has already come as rank {} of run '{}'; is "
                    "the rank set twice, or is this the store of an earlier run?",
                    where(), member_.rank, member_.run_id),
        info(member_));
  for (auto pause = 1ms;; pause = std::min(2 * pause, 50ms)) {
    if (auto values = values_if_complete(name)) return *std::move(values);
    if (const auto broken = failure())
      throw DistributedError(
          fmt::format("rendezvous at {}: the run has failed: {}", where(), broken->what),
          info(member_));
    if (std::chrono::steady_clock::now() >= deadline) throw_absence(name);
    std::this_thread::sleep_for(pause);
  }
}

// Rank 0 reads all keys, over and over; the others only ask for rank 0's mark that all are there,
// which costs the store much less than if every rank read everything.
std::optional<std::vector<std::string>> Store::values_if_complete(const std::string& name) {
  Values all;
  if (member_.rank == 0 || !list(completion_key(name)).empty()) all = list(name + "/");
  if (static_cast<int>(all.size()) != member_.size) return {};
  if (member_.rank == 0) put(completion_key(name), "");
  std::vector<std::string> values;
  for (int rank = 0; rank < member_.size; ++rank)
    values.push_back(all.at(key_of_rank(name, rank)).substr(tag_size));
  return values;
}

void Store::throw_absence(const std::string& name) {
  const Values present = list(name + "/");
  std::vector<int> absent;
  for (int rank = 0; rank < member_.size; ++rank)
    if (!present.contains(key_of_rank(name, rank))) absent.push_back(rank);
  const std::string timeout = distributed::to_string(member_.timeout);
  if (absent.empty())
    throw TimeoutError(fmt::format("rendezvous at {}: all {} ranks are there, but rank 0 did not "
                                   "say so within {}; look whether it hangs or has ended",
                                   where(), member_.size, timeout),
                       info(member_));
  throw TimeoutError(
      fmt::format("rendezvous at {}: {} of {} did not come within {}; look for one that hangs, has "
                  "ended, or was given another address or run id than '{}'",
                  where(), ranks_to_string(absent), member_.size, timeout, member_.run_id),
      info(member_));
}

}  // namespace tutti::distributed::rendezvous
