#include "call_log.h"

#include "../core/error.h"
#include "../core/hash.h"
#include "flight_recorder_file.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace tutti::distributed {
namespace {

void sort_latest_first(std::vector<LatestCall>& calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const LatestCall& a, const LatestCall& b) {
    return a.record.stamp > b.record.stamp;
  });
}

// The call that a backend has just recorded, for the Work that ProcessGroup makes of it. It goes
// around the backend's interface, so that a backend that passes calls on to another needs no code.
thread_local RecordedCall recorded_call;

}  // namespace

RecordedCall take_recorded_call() { return std::exchange(recorded_call, {}); }

std::string describe(const CallRecord& record, const std::string& group) {
  const std::string name(record.name, strnlen(record.name, sizeof(record.name)));
  return describe_call(record.operation, record.sequence, group, name, record.bytes);
}

std::string calls_to_string(std::vector<LatestCall> calls) {
  constexpr std::size_t most = 6;
  std::erase_if(calls, [](const LatestCall& call) { return call.record.sequence == 0; });
  if (calls.empty()) return "no call";
  sort_latest_first(calls);
  const std::size_t shown = std::min(calls.size(), most);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == calls.size() ? " and " : ", ";
    text += describe(calls[i].record, calls[i].group);
  }
  if (shown < calls.size()) text += fmt::format(" and {} more", calls.size() - shown);
  return text;
}

std::optional<std::int64_t> LatestCalls::sequence_of(std::uint64_t group_id) const {
  for (const auto& [group, sequence] : sequences)
    if (group == group_id) return sequence;
  return {};
}

std::uint64_t CallLog::Entry::id_of(const GroupInfo& group, std::int64_t number) {
  Hash64 hash;
  hash.add(std::string_view(group.group)).add(static_cast<std::uint64_t>(number));
  for (const int rank : group.world_ranks) hash.add(static_cast<std::uint64_t>(rank));
  return hash.value();
}

CallRecord CallLog::Entry::record(const Collective& call) {
  CallRecord latest{.sequence = call.sequence,
                    .bytes = call.bytes(),
                    .operation = call.operation,
                    .stamp = stamps_.fetch_add(1, std::memory_order_relaxed) + 1};
  const std::size_t room = sizeof(latest.name) - 1, length = std::min(call.name.size(), room);
  std::memcpy(latest.name, call.name.data(), length);
  CallRecord with_step = latest;  // ranks may part in the step alone
  std::memcpy(with_step.name + length, call.step.data(), std::min(call.step.size(), room - length));
  recorded_call = {recorder_, recorder_->record(recorded_group_, with_step)};
  const std::lock_guard lock(mutex_);
  latest_ = latest;
  return latest;
}

std::shared_ptr<CallLog::Entry> CallLog::add(const GroupInfo& group) {
  const int world_rank = group.world_ranks[static_cast<std::size_t>(group.rank)];
  const std::lock_guard lock(mutex_);
  Recorder& recorder = recorders_[world_rank];
  if (!recorder.recorder) recorder = {std::make_shared<FlightRecorder>(), group.backend};
  const auto entry = std::make_shared<Entry>(world_rank, group, recorder.recorder, stamps_);
  std::erase_if(entries_, [&](const auto& old) {
    return old.use_count() == 1 && old->world_rank_ == world_rank;
  });
  entries_.push_back(entry);
  return entry;
}

RecorderWrite CallLog::write_flight_recorders(const std::string& call,
                                              const std::string& cause) const noexcept {
  try {
    const std::string folder = flight_recorder_folder();
    if (folder.empty()) return {};
    const std::string failure = call.empty() ? cause : call + ": " + cause;
    const auto recorders = [this] {
      const std::lock_guard lock(mutex_);
      return recorders_;
    }();
    const auto is_written = std::make_shared<std::promise<void>>();
    // The thread has copies of all that it uses, because it may outlive main() where the disk
    // hangs.
    std::thread([folder, recorders, failure, is_written] {
      write(folder, recorders, failure);
      is_written->set_value();
    }).detach();
    return RecorderWrite(is_written->get_future().share());
  } catch (const std::exception&) {  // no thread: the failure of the world is what counts
    return {};
  }
}

void CallLog::write(const std::string& folder, const std::map<int, Recorder>& recorders,
                    const std::string& failure) noexcept {
  try {
    for (const auto& [rank, recorder] : recorders)
      write_flight_recorder(folder, *recorder.recorder, {rank, recorder.backend, failure});
  } catch (const std::exception&) {
    // The failure of the world is what counts, and is thrown. A full disk must not hide it.
  }
}

std::optional<LatestCalls> CallLog::latest_calls(int world_rank) const {
  std::vector<LatestCall> calls;
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->world_rank_ != world_rank) continue;
    const std::lock_guard inner(entry->mutex_);
    calls.push_back({entry->latest_, entry->group_, entry->group_id_});
  }
  if (calls.empty()) return {};
  sort_latest_first(calls);
  LatestCalls latest{.text = calls_to_string(calls)};
  for (const LatestCall& call : calls)
    if (!latest.is_full()) latest.sequences.emplace_back(call.group_id, call.record.sequence);
  return latest;
}

}  // namespace tutti::distributed
