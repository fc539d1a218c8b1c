#include "backend.h"

#include "../core/cuda/graph.h"
#include "../core/error.h"
#include "../core/trace.h"
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
  RecordedCall recorded;
  if (recorder_) recorded = recorder_->record(*recorded_group_, call.fingerprint);
  recorded.recorder = recorder_;
  if (trace::is_profiling()) {
    recorded.title = call.options.name.empty() ? to_string(call.operation) : call.options.name;
    recorded.details = fmt::format(R"("operation":"{}","sequence":{},"bytes":{})",
                                   to_string(call.operation), call.sequence, call.bytes());
  }
  return recorded;
}

Capabilities Backend::capabilities(Device device) const {
  if (!device.is_cuda() || device_of_lane() < 0) return info_->capabilities;
  return {.graph_capture = true, .device_waits = true};
}

int Backend::device_of_lane() const {
  return world_ && !passes_on_ ? world_->device_of(info_->world_rank()) : -1;
}

void Backend::check_device(Operation operation, const Tensor& tensor) const {
  if (!tensor.device().is_cuda() || info_->size == 1) return;
  if (const int own = device_of_lane(); own >= 0 && tensor.device().index() != own)
    fail<DeviceError>(
        "{}: expected a tensor on cuda:{}, the device of rank {} of group '{}', got one on {}; "
        "move it there, or set `nccl` to false in the options of the launch, so that CUDA tensors "
        "pass through the host",
        to_string(operation), own, info_->rank, info_->group, to_string(tensor.device()));
}

bool Backend::takes_lane(Operation operation, const Tensor& tensor) const {
  const bool is_taken = tensor.defined() && tensor.device().is_cuda() &&
                        capabilities(tensor.device()).device_waits;
  if (lane_ && !is_taken && cuda::is_capturing(lane_->device()))
    fail<DeviceError>(
        "{}: it goes through the hosts, which no replay of a CUDA graph repeats; keep collectives "
        "of CPU tensors and barriers outside of the captured step",
        to_string(operation));
  if (is_taken && !(lane_ && lane_->is_connected()) && cuda::is_capturing(tensor.device()))
    fail<DeviceError>(
        "{}: the first collective of CUDA tensors in group '{}' sets up NCCL, which a CUDA graph "
        "cannot hold; run the step once before it is captured",
        to_string(operation), info_->group);
  return is_taken;
}

std::shared_ptr<WorkState> Backend::submit_on_lane(const Collective& call) {
  world_->throw_if_failed(call, *info_);
  try {
    if (!lane_) lane_ = world_->make_lane(info_, device_of_lane());
    if (!lane_->is_connected()) {
      // NCCL's id travels through the hosts in the place of this call, so that ranks which are at
      // another call are found.
      Collective exchange = call;
      exchange.operation = Operation::broadcast;
      exchange.root = 0;
      exchange.input = exchange.output = lane_->make_id();
      submit(exchange)->wait();
      lane_->connect(exchange.output, call);
    }
  } catch (const std::exception& error) {  // the other ranks need not wait for their deadline
    world_->fail({.at = describe(call, *info_),
                  .what = fmt::format("rank {}: {}", info_->rank, error.what())});
    world_->throw_if_failed(call, *info_);
  }
  return lane_->submit(call);
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
