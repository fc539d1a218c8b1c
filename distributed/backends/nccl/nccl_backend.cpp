// The NCCL backend: a group has a communicator and a stream of its own. submit() lets that stream
// wait for the caller's current one and enqueues the collective; Work::wait() lets the caller's
// current stream wait for it. The host waits in neither, only in barrier(): so an error that comes
// later is thrown by the group's next call. What the device computed from an aborted collective is
// garbage, but the failure is known before the device goes on.
#include "nccl.h"

#include "../../../core/create.h"
#include "../../../core/cuda/arena.h"
#include "../../../core/cuda/check.h"
#include "../../../core/cuda/runtime.h"
#include "../../diagnostics/fault_injection.h"
#include "domain.h"
#include "memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>

namespace tutti::distributed::nccl {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return ncclFloat32;
    case DType::float64: return ncclFloat64;
    case DType::bfloat16: return ncclBfloat16;
    case DType::float16: return ncclFloat16;
    case DType::int64: return ncclInt64;
    case DType::uint8:
    case DType::boolean: return ncclUint8;  // 0 and 1: min and max are what they should be
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

class NcclWork : public Work::State {
 public:
  NcclWork(std::shared_ptr<Domain> domain, std::shared_ptr<Pending> pending,
           const Backend::Place& place)
      : domain_(std::move(domain)), pending_(std::move(pending)), place_(place) {}

  void wait() override {
    domain_->check(pending_->call, place_);
    const cuda::DeviceScope scope(domain_->device());
    if (pending_->call.operation == Operation::barrier) return wait_on_the_host();
    cuda::current_stream(domain_->device()).wait(pending_->done);
  }
  bool is_done() override { return domain_->failure() || pending_->done.passed(); }

 private:
  // The watcher keeps the deadline.
  void wait_on_the_host() {
    for (int looks = 0; !pending_->done.passed(); ++looks) {
      domain_->check(pending_->call, place_);
      if (looks > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
      else std::this_thread::yield();
    }
    domain_->check(pending_->call, place_);
  }

  std::shared_ptr<Domain> domain_;
  std::shared_ptr<Pending> pending_;
  Backend::Place place_;
};

class NcclBackend : public Backend {
 public:
  NcclBackend(std::shared_ptr<Domain> domain, std::shared_ptr<Channel> channel)
      : Backend(channel->place), domain_(std::move(domain)), channel_(std::move(channel)) {
    domain_->add(channel_);
  }
  ~NcclBackend() override { domain_->retire(*channel_); }

  Tensor empty(const Shape& shape, TensorOptions options) override {
    if (!accepts(options.device)) return Backend::empty(shape, options);
    return registered_empty(channel_, shape, options);
  }

  bool accepts(Device device) const override { return device == staging_device(); }
  Device staging_device() const override { return Device::cuda(domain_->device()); }
  bool issues_alone() const override { return true; }  // what is measured on one GPU has them, too

  std::shared_ptr<Work::State> submit(const Collective& call) override {
    domain_->check(call, place());
    const cuda::DeviceScope scope(domain_->device());
    const cuda::Stream& caller = cuda::current_stream(domain_->device());
    const auto pending = std::make_shared<Pending>();
    pending->call = call;
    if (call.operation == Operation::barrier) pending->call.input = pending->call.output = token();
    pending->print = fingerprint(call);
    pending->ready.record(caller);
    // In a graph nothing happens yet, and what a replay does is out of our sight but for NCCL's own
    // errors.
    if (caller.is_capturing()) {
      stay_with_the_graph();
    } else {
      free_released(domain_->device());
      const std::lock_guard lock(channel_->mutex);
      channel_->issued = call.sequence;
      channel_->pending.push_back(pending);
    }
    channel_->stream.wait(pending->ready);
    try {
      enqueue(pending->call);
    } catch (const Error& error) {
      domain_->fail({.at = describe(call, place()),
                     .what = fmt::format("rank {}: {}", place().rank, error.what())});
      domain_->check(call, place());
    }
    const std::lock_guard lock(channel_->mutex);
    pending->done.record(channel_->stream);
    pending->launched = true;
    return std::make_shared<NcclWork>(domain_, pending, place());
  }

  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override {
    const cuda::DeviceScope scope(domain_->device());
    const Place there = place_in(members, name);
    std::vector<int> world_ranks;
    for (const int member : members)
      world_ranks.push_back(channel_->world_ranks[static_cast<std::size_t>(member)]);
    // Every rank of this group counts every split, so the number tells them apart; the colour tells
    // whose part it is.
    const int color = members.empty() ? NCCL_SPLIT_NOCOLOR
                                      : *std::min_element(members.begin(), members.end());
    const auto child = std::make_shared<Channel>(
        fmt::format("{}.{}:{}", channel_->key, ++splits_, color), there, std::move(world_ranks),
        cuda::Stream::create(domain_->device(), true));
    child->communicator.split(channel_->communicator, color, there.rank,
                              domain_->until(deadline_after(place().timeout),
                                             fmt::format("creating group '{}'", name), place()));
    if (members.empty()) return nullptr;
    return std::make_shared<NcclBackend>(domain_, child);
  }

  void stay_out() override { subgroup({}, "none"); }  // ncclCommSplit needs all ranks
  std::optional<Failure> failure() override { return domain_->failure(); }
  void abort(const std::string& cause) override {
    domain_->fail({.what = fmt::format("rank {} gave up: {}", place().rank, cause)});
  }

 private:
  // Until the last replay is over the channel is in use, its group gone or not.
  void stay_with_the_graph() {
    const auto& graph = cuda::Arena::current(domain_->device());
    if (!graph) return;  // captured by other means than cuda::Graph
    {
      const std::lock_guard lock(channel_->mutex);
      ++channel_->recorded;
    }
    graph->at_end([channel = channel_](const cuda::Stream& last) {
      const std::lock_guard lock(channel->mutex);
      --channel->recorded;
      channel->stream.wait(last);
    });
  }

  // What a barrier sums.
  const Tensor& token() {
    if (!token_.defined()) token_ = zeros({1}, {.dtype = uint8, .device = staging_device()});
    return token_;
  }

  void enqueue(const Collective& call) {
    const std::int64_t elements = call.input.numel();
    if (elements == 0) return;  // the same everywhere, or the fingerprints differ
    const void* input = call.input.raw();
    void* output = call.output.raw();
    const auto count = static_cast<std::size_t>(elements);
    const ncclDataType_t type = type_of(call.input.dtype());
    const ncclRedOp_t op = op_of(call.op);
    const cudaStream_t stream = channel_->stream.get();
    const Poll poll = [&] { domain_->check(call, place()); };
    const auto run = [&](const char* name, const auto& function) {
      channel_->communicator.run(name, function, poll);
    };
    switch (call.operation) {
      case Operation::barrier:
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
          return ncclReduceScatter(input, output, count / static_cast<std::size_t>(place().size),
                                   type, op, comm, stream);
        });
    }
  }

  std::shared_ptr<Domain> domain_;
  std::shared_ptr<Channel> channel_;
  Tensor token_;
  int splits_ = 0;
};

// Which computer this is; NCCL_HOSTID overrides it, as for NCCL.
std::string host() {
  if (const char* id = std::getenv("NCCL_HOSTID"); id && *id) return id;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return fmt::format("{} {}", name, boot);
}

// By which a GPU is the same for every process that sees it.
std::string identity(int device) {
  cudaDeviceProp properties = {};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", "nccl");
  std::string text;
  for (const char byte : properties.uuid.bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

void expect_different_devices(const std::vector<std::string>& gpus) {
  const char* shared = std::getenv("TUTTI_NCCL_SHARE_GPU");
  if (shared && std::string(shared) == "1") return;
  for (std::size_t a = 0; a < gpus.size(); ++a)
    for (std::size_t b = a + 1; b < gpus.size(); ++b)
      if (gpus[a].substr(0, 32) == gpus[b].substr(0, 32))
        tutti::fail<DistributedError>(
            "nccl: ranks {} and {} have the same GPU ({}); NCCL needs one for each rank. Start "
            "fewer ranks on that host, check LOCAL_RANK and CUDA_VISIBLE_DEVICES, or give "
            "WorldOptions::device. (For tests: TUTTI_NCCL_SHARE_GPU=1, and an NCCL_HOSTID of its "
            "own for each rank)",
            a, b, gpus[a].substr(0, 32));
}

std::shared_ptr<Backend> join(const std::shared_ptr<rendezvous::Store>& store,
                              const Options& options) {
  const rendezvous::Member& member = store->member();
  const std::vector<std::string> hosts = store->gather("hosts", host());
  const auto me = hosts.begin() + member.rank;
  Backend::Place place{.rank = member.rank,
                       .size = member.size,
                       .group = "world",
                       .kind = "nccl",
                       .timeout = member.timeout};
  place.local_rank = options.local_rank >= 0 ? options.local_rank
                                             : static_cast<int>(std::count(hosts.begin(), me, *me));
  const int device = options.device >= 0 ? options.device : place.local_rank;
  const cuda::DeviceScope scope(device);  // DeviceError where it is not there

  std::string mine = identity(device);
  ncclUniqueId id = {};
  if (member.rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    mine.append(id.internal, sizeof(id.internal));
  }
  const std::vector<std::string> gpus = store->gather("gpus", mine);
  expect_different_devices(gpus);
  std::memcpy(id.internal, gpus[0].data() + 32, sizeof(id.internal));

  const auto domain = std::make_shared<Domain>(store, device);
  std::vector<int> everybody(static_cast<std::size_t>(member.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto channel =
      std::make_shared<Channel>("world", place, everybody, cuda::Stream::create(device));
  channel->communicator.join(
      id, member.rank, member.size,
      domain->until(deadline_after(member.timeout), "creating NCCL's communicator", place));
  close_at_exit(domain);
  return std::make_shared<NcclBackend>(domain, channel);
}

}  // namespace

std::string why_unavailable() {
  const std::string why = cuda::why_unavailable();
  return why.empty() ? "" : "no CUDA device: " + why;
}

std::shared_ptr<Backend> make_world(const std::shared_ptr<rendezvous::Store>& store,
                                    const Options& options) {
  faults::read_environment();
  faults::inject(Fault::Moment::start, store->member().rank, "world");
  try {
    return join(store, options);
  } catch (const std::exception& error) {
    // The others need not wait for their deadline.
    try {
      store->fail(
          {.what = fmt::format("rank {} could not start: {}", store->member().rank, error.what())});
    } catch (const Error&) {}
    throw;
  }
}

}  // namespace tutti::distributed::nccl
