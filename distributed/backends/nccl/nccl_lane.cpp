// NcclLane: what a lane's device does: the NCCL communicator and the stream of one rank in one
// group. A call lets the stream wait for the caller's current one and enqueues the collective;
// Work::wait() lets the caller's current stream wait for it.
#include "nccl.h"

#include "../../../core/create.h"
#include "../../../core/cuda/arena.h"
#include "../../../core/cuda/check.h"
#include "../../../core/cuda/runtime.h"
#include "../../../core/cuda/stream.h"
#include "../../../core/hash.h"
#include "../../lane.h"
#include "communicator.h"

#include <cstdlib>
#include <cstring>

namespace tutti::distributed::nccl {
namespace {

// Statistics are tens of kilobytes, which more channels would not carry faster, but every channel
// takes a multiprocessor from the kernels beside it and megabytes of buffers for each peer.
constexpr int channels_for_normalization = 2;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return ncclFloat32;
    case DType::float64: return ncclFloat64;
    case DType::bfloat16: return ncclBfloat16;
    case DType::float16: return ncclFloat16;
    case DType::int64: return ncclInt64;
    case DType::uint8:
    case DType::boolean: return ncclUint8;  // of 0 and 1, min and max are right
  }
  tutti::fail<DTypeError>("nccl: no such dtype");
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::mean:
      return ncclAvg;  // NCCL scales before it adds, so that half precision does not overflow
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
  }
  return ncclSum;
}

void expect_usable_environment() {
  if (const char* mode = std::getenv("NCCL_COMM_BLOCKING"); mode && *mode)
    tutti::fail<DistributedError>(
        "nccl: NCCL_COMM_BLOCKING={} would change the mode of every communicator, but some have to "
        "block and others must not: unset it",
        mode);
  if (const char* share = std::getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES");
      share && std::strtoll(share, nullptr, 0) == 1)
    tutti::fail<DistributedError>(
        "nccl: NCCL_COMM_SPLIT_SHARE_RESOURCES={} would give every group the one channel of the "
        "communicator that it was split from, and end all of them with it: unset it",
        share);
}

class NcclLane : public Lane {
 public:
  NcclLane(std::shared_ptr<World> world, std::shared_ptr<const GroupInfo> info, int device)
      : Lane(std::move(world), std::move(info), device),
        stream_(cuda::Stream::create(device, this->info().is_normalization())) {}

  Tensor make_id() const override;
  void enqueue(const Collective& call);
  const cuda::Stream& stream() const { return stream_; }

 private:
  void set_up(const Tensor& id, const Collective& call, const Poll& poll) override;
  std::shared_ptr<IssuedCall> issue(const Collective& call) override;
  std::string asynchronous_error() override { return communicator_.asynchronous_error(); }
  bool has_ended_work() override;
  void begin_abort() override { communicator_.abort(); }
  bool is_aborting() const override { return communicator_.is_ending(); }
  void guard(const std::function<void()>& check) override;
  std::shared_ptr<NcclLane> self() {
    return std::static_pointer_cast<NcclLane>(shared_from_this());
  }
  void hold_for_graph(const Collective& call);
  void check_order_of_launches(const std::shared_ptr<const void>& graph) const;

  const cuda::Stream stream_;  // where the collectives run
  Communicator communicator_{device().index()};
  mutable std::mutex graphs_mutex_;        // guards what follows
  int graph_collectives_ = 0;              // how many collectives CUDA graphs hold
  std::weak_ptr<const void> captured_in_;  // the arena of the graph that took the latest of them
  cuda::Event last_ = cuda::Event();       // after the stream's last work; of the watcher's thread
};

class NcclCall : public IssuedCall {
 public:
  NcclCall(std::shared_ptr<NcclLane> lane, const Collective& call, bool watched)
      : IssuedCall(lane, call, watched), lane_(*lane) {}
  void launch() override {
    const cuda::DeviceScope scope(lane_.device().index());
    lane_.stream().wait(ready);
    lane_.enqueue(call());
    done.record(lane_.stream());
  }
  bool has_inputs() const override { return ready.passed(); }
  bool has_ended() const override { return done.passed(); }

  cuda::Event ready;  // the device has computed the inputs
  cuda::Event done;   // the device has finished the collective, or the last replay of its graph

 private:
  void order_current_stream() const override {
    const cuda::DeviceScope scope(lane_.device().index());
    cuda::current_stream(lane_.device().index()).wait(done);
  }
  NcclLane& lane_;
};

Tensor NcclLane::make_id() const {
  expect_usable_environment();
  ncclUniqueId id = {};
  if (info().rank == 0) nccl::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  const Tensor bytes = zeros({sizeof(id.internal)}, {.dtype = uint8});
  std::memcpy(bytes.raw(), id.internal, sizeof(id.internal));
  return bytes;
}

void NcclLane::set_up(const Tensor& id, const Collective&, const Poll& poll) {
  const cuda::DeviceScope scope(device().index());
  ncclUniqueId own = {};
  std::memcpy(own.internal, id.raw(), sizeof(own.internal));
  communicator_.connect(
      own, info().rank, info().size,
      info().is_normalization() ? channels_for_normalization : NCCL_CONFIG_UNDEF_INT, poll);
}

// A call that is captured in a graph is not watched: it does nothing yet, and its replays are seen
// only through NCCL's own errors.
std::shared_ptr<IssuedCall> NcclLane::issue(const Collective& call) {
  const cuda::DeviceScope scope(device().index());
  const cuda::Stream& caller = cuda::current_stream(device().index());
  const bool is_captured = caller.is_capturing();
  const auto issued = std::make_shared<NcclCall>(self(), call, !is_captured);
  issued->ready.record(caller);
  if (is_captured) hold_for_graph(call);
  return issued;
}

void NcclLane::enqueue(const Collective& call) {
  const std::int64_t elements = call.input.numel();
  if (elements == 0) return;  // on every rank, or the fingerprints differ
  const void* input = call.input.raw();
  void* output = call.output.raw();
  const auto count = static_cast<std::size_t>(elements);
  const ncclDataType_t type = type_of(call.input.dtype());
  const ncclRedOp_t op = op_of(call.op);
  const cudaStream_t stream = stream_.get();
  const auto run = [&](const char* name, const auto& function) {
    communicator_.run(name, function);
  };
  switch (call.operation) {
    case Operation::barrier: return;  // goes through the hosts
    case Operation::all_reduce:
      return run("ncclAllReduce", [&](ncclComm_t comm) {
        return ncclAllReduce(input, output, count, type, op, comm, stream);
      });
    case Operation::all_gather:
      return run("ncclAllGather", [&](ncclComm_t comm) {
        return ncclAllGather(input, output, count, type, comm, stream);
      });
    case Operation::broadcast:
      return run("ncclBroadcast", [&](ncclComm_t comm) {
        return ncclBroadcast(input, output, count, type, call.root, comm, stream);
      });
    case Operation::reduce_scatter:
      return run("ncclReduceScatter", [&](ncclComm_t comm) {
        return ncclReduceScatter(input, output, count / static_cast<std::size_t>(info().size), type,
                                 op, comm, stream);
      });
  }
}

// Keeps the lane and the tensors of a call in use until the last replay of the graph that is being
// captured is over. Every replay uses them, even where the caller has dropped its Work.
void NcclLane::hold_for_graph(const Collective& call) {
  const auto& graph = cuda::Arena::current(device().index());
  if (!graph) return;  // captured by other means than cuda::Graph
  check_order_of_launches(graph);
  {
    const std::lock_guard lock(graphs_mutex_);
    ++graph_collectives_;
    captured_in_ = graph;
  }
  graph->when_graph_is_gone([lane = self(), call](const cuda::Stream& last) {
    const auto replayed = std::make_shared<NcclCall>(lane, call, false);
    replayed->done.record(last);
    lane->stream_.wait(replayed->done);
    lane->keep(replayed);
    const std::lock_guard lock(lane->graphs_mutex_);
    --lane->graph_collectives_;
  });
}

// Throws a DeviceError where a graph that holds collectives of another group is to take one of this
// one, and NCCL is too old to let all devices run them in one order.
void NcclLane::check_order_of_launches(const std::shared_ptr<const void>& graph) const {
  int version = 0;
  nccl::check(ncclGetVersion(&version), "ncclGetVersion");
  if (version >= NCCL_VERSION(2, 26, 0)) return;
  for (const auto& each : world().lanes()) {
    const auto* const other = dynamic_cast<const NcclLane*>(each.get());
    if (!other || other == this || other->device() != device()) continue;
    const std::lock_guard lock(other->graphs_mutex_);
    if (other->captured_in_.lock() == graph)
      fail<DeviceError>(
          "nccl: a CUDA graph with collectives of the groups '{}' and '{}' needs NCCL 2.26 or "
          "later, found {}.{}, which ignores NCCL_LAUNCH_ORDER_IMPLICIT: two GPUs that begin the "
          "collectives in different orders would deadlock. Install a later NCCL, or run the step "
          "without a graph",
          other->info().group, info().group, version / 10000, version / 100 % 100);
  }
}

bool NcclLane::has_ended_work() {
  {
    const std::lock_guard lock(graphs_mutex_);
    if (graph_collectives_ > 0) return false;
  }
  if (!last_.recorded()) last_.record(stream_);
  return last_.passed();
}

// What the thread asks of CUDA meanwhile does not disturb a graph that another thread captures.
void NcclLane::guard(const std::function<void()>& check) {
  const cuda::DeviceScope scope(device().index());
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  try {
    check();
  } catch (...) {
    cudaThreadExchangeStreamCaptureMode(&mode);
    throw;
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace

bool is_built_in() { return true; }

std::string why_unavailable() {
  const std::string why = cuda::why_unavailable();
  return why.empty() ? why_not_loaded() : "no CUDA device: " + why;
}

std::uint64_t gpu_number(int device) {
  cudaDeviceProp properties = {};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", "nccl");
  return Hash64().add(properties.uuid.bytes, sizeof(properties.uuid.bytes)).value();
}

void set_environment() {
  // The host's order is that of the device too, where collectives of two communicators on two
  // streams are ready at the same time. Ranks with different orders would wait for each other.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // Connects the ranks in the set-up, which can be given up, and not in the first collectives.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

std::shared_ptr<Lane> make_lane(std::shared_ptr<World> world, std::shared_ptr<const GroupInfo> info,
                                int device) {
  return std::make_shared<NcclLane>(std::move(world), std::move(info), device);
}

}  // namespace tutti::distributed::nccl
