#include "flight_recorder.h"

#include "../core/error.h"
#include "../core/hash.h"
#include "../core/ticks.h"

#include <algorithm>
#include <functional>

namespace tutti::distributed {
namespace {

// A reading of both clocks at the start of the process. A second one tells how fast ticks go.
const std::int64_t ticks_at_start = ticks_now();
const std::chrono::steady_clock::time_point time_at_start = std::chrono::steady_clock::now();

}  // namespace

double ticks_to_seconds(std::int64_t ticks) {
  const std::int64_t ticks_passed = ticks_now() - ticks_at_start;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - time_at_start;
  return static_cast<double>(ticks) * passed.count() / static_cast<double>(ticks_passed);
}

std::chrono::steady_clock::time_point time_of_ticks(std::int64_t ticks) {
  const std::chrono::duration<double> since(ticks_to_seconds(ticks - ticks_at_start));
  return time_at_start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
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
  std::erase_if(groups_, [&](const auto& group) {
    if (group.use_count() > 1) return false;
    left_.emplace_back(group->id, group->latest.sequence);
    return true;
  });
  while (left_.size() > capacity) left_.pop_front();
  return groups_.emplace_back(std::make_shared<Group>(
      Group{static_cast<std::size_t>(found - names_.begin()), found->count, id.value(), name}));
}

RecordedCall FlightRecorder::record(Group& group, const Fingerprint& call) {
  const std::int64_t issued = ticks_now();
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[static_cast<std::size_t>(calls_) % capacity];
  entry.call = group.latest = call;
  entry.group = group.index;
  entry.group_number = group.number;
  entry.times = {.issued = issued};
  group.stamp = ++calls_;
  return {.number = calls_, .issued = issued};
}

CallTimes FlightRecorder::finish(const RecordedCall& call, std::int64_t began,
                                 std::chrono::nanoseconds before) {
  const std::int64_t ended = ticks_now();
  std::int64_t ticks_before = 0;
  if (before.count() > 0)
    ticks_before =
        static_cast<std::int64_t>(static_cast<double>(before.count()) * 1e-9 / ticks_to_seconds(1));
  const CallTimes times{.issued = call.issued,
                        .done = std::max(call.issued, ended - ticks_before),  // of another clock
                        .waited = ended - began};
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[static_cast<std::size_t>(call.number - 1) % capacity];
  const bool is_there = call.number > calls_ - static_cast<std::int64_t>(capacity);
  if (is_there && entry.times.done == 0) entry.times = times;
  return times;
}

FlightRecorder::Contents FlightRecorder::contents() const {
  const std::lock_guard lock(mutex_);
  Contents contents{.groups = names_, .calls = calls_, .entries = {}};
  const auto size = static_cast<std::int64_t>(capacity);
  for (std::int64_t i = std::max<std::int64_t>(0, calls_ - size); i < calls_; ++i)
    contents.entries.push_back(ring_[static_cast<std::size_t>(i % size)]);
  return contents;
}

LatestCalls FlightRecorder::latest_calls() const {
  std::vector<Group> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) groups.push_back(*group);
  }
  std::ranges::stable_sort(groups, std::greater(), &Group::stamp);
  LatestCalls calls;
  for (const Group& group : groups)
    if (!calls.is_full()) calls.sequences.emplace_back(group.id, group.latest.sequence);
  std::erase_if(groups, [](const Group& group) { return group.latest.sequence == 0; });
  const std::size_t shown = std::min<std::size_t>(groups.size(), 6);
  if (shown > 0) calls.text.clear();
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) calls.text += i + 1 == groups.size() ? " and " : ", ";
    calls.text += describe(groups[i].latest, groups[i].name, groups[i].latest.name());
  }
  if (shown < groups.size()) calls.text += fmt::format(" and {} more", groups.size() - shown);
  return calls;
}

std::optional<Fingerprint> FlightRecorder::find(std::uint64_t group_id,
                                                std::int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const auto group =
      std::ranges::find(groups_, group_id, [](const auto& each) { return each->id; });
  if (group == groups_.end() || (*group)->latest.sequence < sequence) return {};
  for (const Entry& entry : ring_)
    if (entry.call.sequence == sequence && entry.group == (*group)->index &&
        entry.group_number == (*group)->number)
      return entry.call;
  return {};
}

std::optional<std::int64_t> FlightRecorder::left_after(std::uint64_t group_id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_)
    if (group->id == group_id && group.use_count() == 1) return group->latest.sequence;
  for (const auto& [id, sequence] : left_)
    if (id == group_id) return sequence;
  return {};
}

std::optional<std::int64_t> LatestCalls::sequence_of(std::uint64_t group_id) const {
  for (const auto& [group, sequence] : sequences)
    if (group == group_id) return sequence;
  return {};
}

}  // namespace tutti::distributed
