#include "collective.h"

#include "../core/error.h"
#include "../core/hash.h"
#include "../core/ticks.h"
#include "../core/trace.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace tutti::distributed {
namespace {

// Returns the text of LatestCalls for groups of which that of the latest call comes first.
std::string calls_to_string(std::vector<FlightRecorder::Group> groups) {
  constexpr std::size_t most = 6;
  std::erase_if(groups, [](const auto& group) { return group.latest.sequence == 0; });
  if (groups.empty()) return "no call";
  const std::size_t shown = std::min(groups.size(), most);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == groups.size() ? " and " : ", ";
    text += describe(groups[i].latest, groups[i].name);
  }
  if (shown < groups.size()) text += fmt::format(" and {} more", groups.size() - shown);
  return text;
}

}  // namespace

Work::Work(std::shared_ptr<State> state, RecordedCall recorded)
    : state_(std::move(state)), recorded_(std::move(recorded)) {}

void Work::wait() {
  if (!state_) return;
  if (process_.is_of_parent())
    fail<DistributedError>(
        "Work::wait: this collective belongs to the process that this one was forked from, which "
        "alone can wait for it; wait before a fork, or start the child with exec");
  const std::int64_t began = ticks_now();
  {
    std::optional<trace::Span> span;
    if (!recorded_.title.empty()) span.emplace([&] { return "wait: " + recorded_.title; });
    state_->wait();
  }
  if (!recorded_.recorder) return;
  const Clock::time_point done = state_->done_at();
  const auto before = done == Clock::time_point{} ? Clock::duration{} : Clock::now() - done;
  const CallTimes times = recorded_.recorder->finish(recorded_, began, before);
  if (!recorded_.title.empty())
    trace::add_async(recorded_.title, time_of_ticks(times.issued), time_of_ticks(times.done),
                     fmt::format(R"({},"wait_us":{:.3f})", recorded_.details,
                                 1e6 * ticks_to_seconds(times.waited)));
  recorded_ = {};
}

bool Work::is_done() {
  if (!state_ || process_.is_of_parent()) return true;
  if (!state_->is_done()) return false;
  try {
    wait();  // takes the last steps, such as the copy to a tensor with gaps
  } catch (const std::exception&) {}  // the next wait() throws it again
  return true;
}

std::int64_t Collective::bytes() const {
  return input.defined() ? input.numel() * static_cast<std::int64_t>(size_of(input.dtype())) : 0;
}

Fingerprint fingerprint(const Collective& call, Path path) {
  Fingerprint result{.sequence = call.sequence,
                     .name_hash = Hash64()
                                      .add(call.name.data(), call.name.size())
                                      .add(call.step.data(), call.step.size())
                                      .value(),
                     .root = call.root,
                     .operation = call.operation,
                     .op = static_cast<std::uint8_t>(call.op),
                     .path = path,
                     .of_model = call.of_model};
  if (call.input.defined()) {
    const Shape shape = call.input.shape();
    result.count = numel(shape);
    result.rank = static_cast<std::uint8_t>(shape.size());
    for (int d = 0; d < shape.size(); ++d)
      result.sizes[d] = static_cast<std::int32_t>(
          std::min<std::int64_t>(shape[d], std::numeric_limits<std::int32_t>::max()));
    result.dtype = static_cast<std::uint8_t>(call.input.dtype());
  }
  std::size_t at = 0;
  const auto add = [&](const std::string& part) {
    const std::size_t added = part.copy(result.text + at, sizeof(result.text) - 1 - at);
    at += added;
    return static_cast<std::uint8_t>(added);
  };
  result.name_bytes = add(call.name);
  result.step_bytes = add(call.step);
  add(call.detail);
  return result;
}

std::string describe(const Collective& call, const GroupInfo& group) {
  return describe(call.fingerprint, group.group, call.name + call.detail);
}

LatestCalls::LatestCalls(std::vector<FlightRecorder::Group> groups) {
  std::ranges::stable_sort(groups, std::greater(), &FlightRecorder::Group::stamp);
  for (const FlightRecorder::Group& group : groups)
    if (!is_full()) sequences.emplace_back(group.id, group.latest.sequence);
  text = calls_to_string(std::move(groups));
}

std::optional<std::int64_t> LatestCalls::sequence_of(std::uint64_t group_id) const {
  for (const auto& [group, sequence] : sequences)
    if (group == group_id) return sequence;
  return {};
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string ranks_to_string(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::string to_string(std::chrono::milliseconds duration) {
  return duration.count() % 1000 == 0 ? fmt::format("{} s", duration.count() / 1000)
                                      : fmt::format("{} ms", duration.count());
}

void check_timeout(const char* where, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    fail<ValueError>("{}: expected a positive timeout, got {}", where, to_string(timeout));
}

Clock::time_point deadline_after(std::chrono::milliseconds timeout, Clock::time_point start) {
  return start + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

}  // namespace tutti::distributed
