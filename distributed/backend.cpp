#include "backend.h"

#include "../core/error.h"

#include <algorithm>
#include <utility>

namespace tutti::distributed {
namespace {

// The call that a backend has just recorded, for the Work that ProcessGroup makes of it. It goes
// around the backend's interface, so that a backend that passes calls on to another needs no code.
thread_local RecordedCall recorded_call;

}  // namespace

RecordedCall take_recorded_call() { return std::exchange(recorded_call, {}); }

Backend::Backend(GroupInfo info, std::shared_ptr<World> world) : world_(std::move(world)) {
  if (world_) {
    recorder_ = world_->recorder(info);
    recorded_group_ = recorder_->add_group(info.group, info.world_ranks);
    info.id = recorded_group_->id;
  }
  info_ = std::make_shared<GroupInfo>(std::move(info));
}

void Backend::record(const Collective& call) {
  recorded_call = {recorder_, recorder_->record(*recorded_group_, call_record(call), call.step)};
}

GroupInfo Backend::subgroup_info(const std::vector<int>& members, const std::string& name) const {
  GroupInfo there = *info_;
  there.rank =
      static_cast<int>(std::find(members.begin(), members.end(), info_->rank) - members.begin());
  there.size = static_cast<int>(members.size());
  there.group = name;
  there.world_ranks.clear();
  there.hosts.clear();
  for (const int member : members) {
    const auto at = static_cast<std::size_t>(member);
    there.world_ranks.push_back(info_->world_ranks[at]);
    if (!info_->hosts.empty()) there.hosts.push_back(info_->hosts[at]);
  }
  return there;
}

void Backend::check_thread(std::string_view what) const {
  if (!world_ || !of_thread_ || of_thread_->world_ != world_) return;
  const int owner = info_->world_ranks[static_cast<std::size_t>(info_->rank)];
  if (const int caller = of_thread_->info_->rank; caller != owner)
    fail<DistributedError>(
        "{}: group '{}' is that of rank {}, but rank {} calls it; give the thread of each rank a "
        "model, a DataParallel and a group of its own",
        what, info_->group, owner, caller);
}

void Backend::abort(const std::string& cause) {
  if (world_) world_->fail({.what = fmt::format("rank {} gave up: {}", info_->rank, cause)});
}

std::optional<Failure> Backend::failure() { return world_ ? world_->failure() : std::nullopt; }

}  // namespace tutti::distributed
