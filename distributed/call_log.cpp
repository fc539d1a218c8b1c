#include "call_log.h"

#include "../core/error.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed {

CallRecord record_of(const Collective& call) {
  CallRecord record{
      .sequence = call.sequence, .bytes = call.bytes(), .operation = call.operation, .name = {}};
  std::memcpy(record.name, call.name.data(), std::min(call.name.size(), sizeof(record.name) - 1));
  return record;
}

std::string describe(const CallRecord& record, const std::string& group) {
  const std::string name(record.name, strnlen(record.name, sizeof(record.name)));
  return describe_call(record.operation, record.sequence, group, name, record.bytes);
}

std::string calls_to_string(const std::vector<std::string>& calls) {
  constexpr std::size_t most = 6;
  if (calls.empty()) return "no call";
  const std::size_t shown = std::min(calls.size(), most);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i)
    text += (i == 0 ? "" : i + 1 == calls.size() ? " and " : ", ") + calls[i];
  if (shown < calls.size()) text += fmt::format(" and {} more", calls.size() - shown);
  return text;
}

void CallLog::Entry::record(const Collective& call) {
  const CallRecord latest = record_of(call);
  const std::lock_guard lock(mutex_);
  latest_ = latest;
}

std::shared_ptr<CallLog::Entry> CallLog::add(const GroupInfo& group) {
  const int world_rank = group.world_ranks[static_cast<std::size_t>(group.rank)];
  const auto entry = std::make_shared<Entry>(world_rank, group.group);
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& old) {
    return old.use_count() == 1 && old->world_rank_ == world_rank && old->group_ == group.group;
  });
  entries_.push_back(entry);
  return entry;
}

std::optional<std::string> CallLog::latest_calls(int world_rank) const {
  std::vector<std::string> calls;
  bool is_known = false;
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->world_rank_ != world_rank) continue;
    is_known = true;
    const std::lock_guard inner(entry->mutex_);
    if (entry->latest_.sequence > 0) calls.push_back(describe(entry->latest_, entry->group_));
  }
  return is_known ? std::optional(calls_to_string(calls)) : std::nullopt;
}

}  // namespace tutti::distributed
