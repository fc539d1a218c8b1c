#include "store.h"

#include <algorithm>
#include <random>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t tag_size = 9;  // of the random number in front of a gathered value
constexpr std::size_t max_failure_bytes = 8192;  // of each of a failure's two texts
constexpr std::size_t bytes_of_a_key = 64;       // what the table counts for a key besides its text

CollectiveInfo info(const Member& member) {
  return {.rank = member.rank, .world_size = member.size, .operation = "rendezvous", .name = {}};
}

// The keys of gather(): the value of each rank, and rank 0's mark that all values are there.
std::string key_of_rank(const std::string& name, int rank) {
  return name + "/" + std::to_string(rank);
}
std::string completion_key(const std::string& name) { return name + " complete"; }

}  // namespace

void check_size(const Request& request) {
  if (request.key.size() > max_key_bytes)
    tutti::fail<ValueError>("rendezvous: expected a key of at most {} bytes, got {}", max_key_bytes,
                            request.key.size());
  if (request.value.size() > max_value_bytes)
    tutti::fail<ValueError>("rendezvous: expected a value of at most {} bytes for '{}', got {}",
                            max_value_bytes, request.key, request.value.size());
}

Values Table::apply(const Request& request) {
  Values found;
  switch (request.operation) {
    case Request::Operation::put:
    case Request::Operation::set: return write(request);
    case Request::Operation::list:
      for (auto it = values_.lower_bound(request.key);
           it != values_.end() && it->first.starts_with(request.key); ++it)
        found.insert(*it);
      break;
    case Request::Operation::leave: break;
  }
  return found;
}

Values Table::write(const Request& request) {
  const auto found = values_.find(request.key);
  const bool is_new = found == values_.end();
  if (!is_new && request.operation == Request::Operation::put) return {*found};
  const std::size_t old_bytes = is_new ? 0 : found->second.size();
  const std::size_t bytes = bytes_ - old_bytes + request.value.size() +
                            (is_new ? request.key.size() + bytes_of_a_key : 0);
  if (bytes > max_table_bytes || values_.size() + (is_new ? 1 : 0) > max_table_keys)
    tutti::fail<DistributedError>(
        "rendezvous: the store is full: '{}' would make it hold {} keys and {} bytes, of at most "
        "{} and {}",
        request.key, values_.size() + (is_new ? 1 : 0), bytes, max_table_keys, max_table_bytes);
  values_[request.key] = request.value;
  bytes_ = bytes;
  return {{request.key, request.value}};
}

// A failure in the table is one letter, 't' for a timeout, then `at`, a newline, and `what`.
std::string encode_failure(const Failure& why) {
  std::string at = why.at.substr(0, max_failure_bytes);
  std::replace(at.begin(), at.end(), '\n', ' ');
  return fmt::format("{}{}\n{}", why.timeout ? 't' : ' ', at,
                     why.what.substr(0, max_failure_bytes));
}

Failure decode_failure(const std::string& value) {
  const auto newline = value.find('\n');
  if (newline == std::string::npos || (value[0] != 't' && value[0] != ' ') ||
      value.size() > 2 * max_failure_bytes + 2)
    return {.what = fmt::format("the rendezvous store holds a failure of {} bytes that no rank of "
                                "tutti has written",
                                value.size())};
  return {.at = value.substr(1, newline - 1),
          .what = value.substr(newline + 1),
          .timeout = value[0] == 't'};
}

Values Store::request(const Request& request) {
  check_size(request);
  return carry_out(request);
}

std::string Store::put(const std::string& key, const std::string& value) {
  const Values found = request({Request::Operation::put, key, value});
  const auto entry = found.find(key);
  if (entry == found.end())
    tutti::fail<DistributedError>("rendezvous at {}: the answer to a write of '{}' lacks its value",
                                  where(), key);
  return entry->second;
}

void Store::set(const std::string& key, const std::string& value) {
  request({Request::Operation::set, key, value});
}

Values Store::list(const std::string& prefix) {
  return request({Request::Operation::list, prefix});
}

std::optional<Failure> Store::failure() {
  const Values found = list(failure_key);
  const auto entry = found.find(failure_key);
  return entry == found.end() ? std::nullopt : std::optional(decode_failure(entry->second));
}

Failure Store::fail(const Failure& why) {
  return decode_failure(put(failure_key, encode_failure(why)));
}

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
  if (member_.rank != 0 && list(completion_key(name)).empty()) return {};
  const Values all = list(name + "/");
  std::vector<std::string> values;
  for (int rank = 0; rank < member_.size; ++rank) {
    const auto found = all.find(key_of_rank(name, rank));
    if (found == all.end()) return {};
    if (found->second.size() < tag_size)
      throw DistributedError(
          fmt::format("rendezvous at {}: the value '{}' of rank {} has {} bytes, but at least {} "
                      "are its tag; do all ranks run the same program?",
                      where(), name, rank, found->second.size(), tag_size),
          info(member_));
    values.push_back(found->second.substr(tag_size));
  }
  if (member_.rank == 0) put(completion_key(name), "");
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
      fmt::format("rendezvous at {}: {}; look for one that hangs, has ended, or was given another "
                  "address or run id than '{}'",
                  where(),
                  to_string(Absence{absent, "did not come", member_.timeout, member_.size}),
                  member_.run_id),
      info(member_));
}

}  // namespace tutti::distributed::rendezvous
