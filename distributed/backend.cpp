#include "backend.h"

#include "../core/error.h"
#include "lane.h"

#include <algorithm>

namespace tutti::distributed {

Backend::Backend(GroupInfo info, std::shared_ptr<World> world) : world_(std::move(world)) {
  if (world_) {
    recorder_ = world_->recorder(info);
    recorded_group_ = recorder_->add_group(info.group, info.world_ranks);
    info.id = recorded_group_->id;
  }
  info_ = std::make_shared<GroupInfo>(std::move(info));
}

Backend::Backend(const std::shared_ptr<Backend>& inner)
    : info_(inner->info_),
      world_(inner->world_),
      recorder_(inner->recorder_),
      recorded_group_(inner->recorded_group_),
      passes_on_(true) {}

Backend::~Backend() {
  if (!lane_) return;
  if (belongs_to_parent()) new auto(lane_);  // NCCL's communicator is the parent's too
  else lane_->release();
}

RecordedCall Backend::record(const Collective& call) {
  if (!recorder_) return {};
  RecordedCall recorded = recorder_->record(*recorded_group_, call.fingerprint);
  recorded.recorder = recorder_;
  return recorded;
}

Capabilities Backend::capabilities(Device device) const {
  const bool has_lane = world_ && !passes_on_ && world_->device_of(info_->world_rank()) >= 0;
  if (!device.is_cuda() || !has_lane) return info_->capabilities;
  return {.graph_capture = true, .device_waits = true};
}

Lane* Backend::lane() {
  if (!world_ || passes_on_) return nullptr;
  const int device = world_->device_of(info_->world_rank());
  if (!lane_ && device >= 0) lane_ = world_->make_lane(info_, device);
  return lane_.get();
}

GroupInfo Backend::subgroup_info(const std::vector<int>& members, const std::string& name) const {
  GroupInfo there = *info_;
  there.rank = static_cast<int>(std::ranges::find(members, info_->rank) - members.begin());
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
  const int owner = info_->world_rank();
  if (const int caller = of_thread_->info_->rank; caller != owner)
    fail<DistributedError>(
        "{}: group '{}' is that of rank {}, but rank {} calls it; give the thread of each rank a "
        "model, a DataParallel and a group of its own",
        what, info_->group, owner, caller);
}

void Backend::abort(const std::string& cause) {
  if (world_)
    world_->fail({.what = fmt::format("rank {} gave up: {}", info_->rank, cause),
                  .rank = info_->world_rank()});
}

std::optional<Failure> Backend::failure() { return world_ ? world_->failure() : std::nullopt; }

}  // namespace tutti::distributed
