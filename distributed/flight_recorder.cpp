#include "flight_recorder.h"

#include "../core/hash.h"
#include "../core/ticks.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed {
namespace {

// A reading of both clocks at the start of the process. A second one tells how fast ticks go.
struct ClockReadings {
  std::int64_t ticks = ticks_now();
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};
const ClockReadings at_start;

}  // namespace

double ticks_to_seconds(std::int64_t ticks) {
  const ClockReadings now;
  const std::chrono::duration<double> passed = now.time - at_start.time;
  return static_cast<double>(ticks) * passed.count() /
         static_cast<double>(now.ticks - at_start.ticks);
}

std::shared_ptr<FlightRecorder::Group> FlightRecorder::add_group(
    const std::string& name, const std::vector<int>& world_ranks) {
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(names_.begin(), names_.end(), [&](const GroupName& group) {
    return group.name == name && group.world_ranks == world_ranks;
  });
  if (found == names_.end())
    found = names_.insert(found, {.name = name, .world_ranks = world_ranks});
  Hash64 id;
  id.add(std::string_view(name)).add(static_cast<std::uint64_t>(++found->count));
  for (const int rank : world_ranks) id.add(static_cast<std::uint64_t>(rank));
  std::erase_if(groups_, [](const auto& group) { return group.use_count() == 1; });
  return groups_.emplace_back(std::make_shared<Group>(
      Group{static_cast<std::size_t>(found - names_.begin()), found->count, id.value()}));
}

std::int64_t FlightRecorder::record(Group& group, const CallRecord& call, std::string_view step) {
  const std::int64_t issued = ticks_now();
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[static_cast<std::size_t>(calls_) % capacity];
  entry = {.call = call, .group = group.index, .group_number = group.number, .issued = issued};
  entry.call.stamp = ++calls_;
  group.latest = entry.call;
  const std::size_t length = strnlen(call.name, sizeof(call.name) - 1);
  step.copy(entry.call.name + length, sizeof(call.name) - 1 - length);  // ranks may part in it
  return calls_;
}

void FlightRecorder::finish(std::int64_t number, std::int64_t began,
                            std::chrono::nanoseconds before) {
  const std::int64_t ended = ticks_now();
  std::int64_t ticks_before = 0;
  if (before.count() > 0)
    ticks_before =
        static_cast<std::int64_t>(static_cast<double>(before.count()) * 1e-9 / ticks_to_seconds(1));
  const std::lock_guard lock(mutex_);
  if (number <= calls_ - static_cast<std::int64_t>(capacity)) return;  // its place is taken
  Entry& entry = ring_[static_cast<std::size_t>(number - 1) % capacity];
  if (entry.done != 0) return;
  entry.done = std::max(entry.issued, ended - ticks_before);  // `before` is of another clock
  entry.waited = ended - began;
}

FlightRecorder::Contents FlightRecorder::contents() const {
  const std::lock_guard lock(mutex_);
  Contents contents{.groups = names_, .calls = calls_, .entries = {}};
  const auto size = static_cast<std::int64_t>(capacity);
  for (std::int64_t i = std::max<std::int64_t>(0, calls_ - size); i < calls_; ++i)
    contents.entries.push_back(ring_[static_cast<std::size_t>(i % size)]);
  return contents;
}

std::vector<LatestCall> FlightRecorder::latest_calls() const {
  const std::lock_guard lock(mutex_);
  std::vector<LatestCall> calls;
  for (const auto& group : groups_)
    calls.push_back({group->latest, names_[group->index].name, group->id});
  return calls;
}

}  // namespace tutti::distributed
