#include "store.h"

#include "../../../core/parse_number.h"

#include <algorithm>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr const char* failure_key = "failure";   // of the failure that has broken the run
constexpr std::size_t max_failure_bytes = 8192;  // of each of a failure's two texts
constexpr std::size_t bytes_of_a_key = 64;       // what the table counts for a key besides its text

// How much longer than rank 0 the others wait in gather(): it fails the run with the right names.
constexpr auto patience_with_rank_0 = 2s;

// The keys of gather(): the value of each rank, and rank 0's answer to it.
std::string key_of_value(const std::string& name, int rank) {
  return name + "/" + std::to_string(rank);
}
std::string key_of_answer(const std::string& name, int rank) {
  return key_of_value(name + " answers", rank);
}

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
  const auto at = values_.find(request.key);
  const bool is_there = at != values_.end();
  switch (request.operation) {
    case Request::Operation::put: return is_there ? Values{*at} : write(request.key, request.value);
    case Request::Operation::set: return write(request.key, request.value);
    case Request::Operation::count: {
      const int number = is_there ? parse_number(at->second, 0).value_or(0) : 0;
      return write(request.key, std::to_string(number + 1));
    }
    case Request::Operation::get: return is_there ? Values{*at} : Values{};
    case Request::Operation::list:
      for (auto it = values_.lower_bound(request.key);
           it != values_.end() && it->first.starts_with(request.key); ++it)
        found.insert(*it);
      break;
    case Request::Operation::leave: break;
  }
  return found;
}

Values Table::write(const std::string& key, const std::string& value) {
  const auto found = values_.find(key);
  const bool is_new = found == values_.end();
  const std::size_t old_bytes = is_new ? 0 : found->second.size();
  const std::size_t bytes = bytes_ - old_bytes + value.size() +
                            (is_new ? key.size() + bytes_of_a_key : 0);
  if (bytes > max_table_bytes || values_.size() + (is_new ? 1 : 0) > max_table_keys)
    tutti::fail<DistributedError>(
        "rendezvous: the store is full: '{}' would make it hold {} keys and {} bytes, of at most "
        "{} and {}",
        key, values_.size() + (is_new ? 1 : 0), bytes, max_table_keys, max_table_bytes);
  values_[key] = value;
  bytes_ = bytes;
  return {{key, value}};
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

std::string Store::request_write(Request::Operation operation, const std::string& key,
                                 const std::string& value) {
  const Values found = request({operation, key, value});
  const auto entry = found.find(key);
  if (entry == found.end())
    tutti::fail<DistributedError>("rendezvous at {}: the answer to a write of '{}' lacks its value",
                                  where(), key);
  return entry->second;
}

std::string Store::put(const std::string& key, const std::string& value) {
  return request_write(Request::Operation::put, key, value);
}

void Store::set(const std::string& key, const std::string& value) {
  request_write(Request::Operation::set, key, value);
}

int Store::count(const std::string& key) {
  return parse_number(request_write(Request::Operation::count, key, {}), 0).value_or(0);
}

std::optional<std::string> Store::get(const std::string& key) {
  Values found = request({Request::Operation::get, key});
  const auto entry = found.find(key);
  return entry == found.end() ? std::nullopt : std::optional(std::move(entry->second));
}

Values Store::list(const std::string& prefix) {
  return request({Request::Operation::list, prefix});
}

std::optional<Failure> Store::failure() {
  const auto found = get(failure_key);
  return found ? std::optional(decode_failure(*found)) : std::nullopt;
}

Failure Store::fail(const Failure& why) {
  return decode_failure(put(failure_key, encode_failure(why)));
}

std::string Store::gather(const std::string& name, const std::string& value,
                          const Answers& answers) {
  const bool is_first = member_.rank == 0;
  const auto deadline = deadline_after(member_.timeout + (is_first ? 0s : patience_with_rank_0));
  std::vector<std::string> values;
  set(key_of_value(name, member_.rank), value);
  for (auto pause = 1ms;; pause = std::min(2 * pause, 50ms)) {
    if (is_first && collect(name, values)) {
      const std::vector<std::string> all = answers(values);
      for (int rank = 0; rank < member_.size; ++rank)
        set(key_of_answer(name, rank), all[static_cast<std::size_t>(rank)]);
    }
    if (auto answer = get(key_of_answer(name, member_.rank))) return *std::move(answer);
    if (const auto broken = failure())
      throw_failure(*broken,
                    fmt::format("rendezvous at {}: the run has failed: {}", where(), broken->what),
                    {.rank = member_.rank,
                     .world_size = member_.size,
                     .operation = "rendezvous",
                     .name = {}});
    if (Clock::now() >= deadline) fail(absence(name));
    else std::this_thread::sleep_for(pause);
  }
}

// Goes on with the values where it stopped the last time. Returns whether all of them are there.
bool Store::collect(const std::string& name, std::vector<std::string>& values) {
  while (static_cast<int>(values.size()) < member_.size) {
    auto next = get(key_of_value(name, static_cast<int>(values.size())));
    if (!next) return false;
    values.push_back(*std::move(next));
  }
  return true;
}

Failure Store::absence(const std::string& name) {
  const bool is_first = member_.rank == 0;
  std::vector<int> absent;
  for (int rank = 0; rank < (is_first ? member_.size : 1); ++rank)
    if (!is_first || !get(key_of_value(name, rank))) absent.push_back(rank);
  return {.what = fmt::format(
              "{}; look for one that hangs, has ended, or was given another address or run id "
              "(this run is '{}')",
              to_string(Absence{absent, is_first ? "did not come" : "did not answer",
                                member_.timeout, member_.size}),
              member_.run_id),
          .timeout = true};
}

}  // namespace tutti::distributed::rendezvous
