// The NCCL backend: each group has a communicator and a stream of its own. submit() lets that
// stream wait for the caller's current one and enqueues the collective; Work::wait() lets the
// caller's current stream wait for it. The host waits in barrier() only, so an error that comes
// later is thrown by the group's next call. What the device computes from an aborted collective is
// garbage, but the failure is known to the host before the device goes on.
#include "nccl.h"

#include "../../../core/create.h"
#include "../../../core/cuda/arena.h"
#include "../../../core/cuda/check.h"
#include "../../../core/cuda/runtime.h"
#include "../../diagnostics/fault_injection.h"
#include "../../host_layout.h"
#include "group_registry.h"

#include <algorithm>
#include <cstdlib>

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

class NcclWork : public Work::State {
 public:
  NcclWork(std::shared_ptr<GroupRegistry> registry, std::shared_ptr<const GroupInfo> group,
           std::shared_ptr<IssuedCall> issued)
      : registry_(std::move(registry)), group_(std::move(group)), issued_(std::move(issued)) {}

  void wait() override {
    throw_if_failed();
    const cuda::DeviceScope scope(registry_->device());
    if (issued_->call.operation == Operation::barrier) return wait_on_host();
    cuda::current_stream(registry_->device()).wait(issued_->done);
  }
  bool is_done() override { return registry_->world()->failure() || issued_->done.passed(); }

 private:
  // The watcher keeps the deadline.
  void wait_on_host() {
    for (int polls = 0; !issued_->done.passed(); ++polls) {
      throw_if_failed();
      if (polls > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
      else std::this_thread::yield();
    }
    throw_if_failed();
    // Another rank that gives up a collective tells this one first, and then ends the collective on
    // its device, which may go on to this barrier. If it fails otherwise, it has left the barrier.
    const std::optional<Failure> failure = registry_->world()->poll();
    if (failure && !failure->at.empty()) throw_if_failed();
  }
  void throw_if_failed() const { registry_->world()->throw_if_failed(issued_->call, *group_); }

  std::shared_ptr<GroupRegistry> registry_;
  std::shared_ptr<const GroupInfo> group_;
  std::shared_ptr<IssuedCall> issued_;
};

// Polled while NCCL sets something up that all ranks take part in: keeps the group's timeout.
Poll poll_step(GroupRegistry& registry, const std::string& what, const GroupInfo& info) {
  return [&registry, what, deadline = Deadline::after(info.timeout), info] {
    registry.world()->check_step(what, deadline, info);
  };
}

class NcclBackend : public Backend {
 public:
  NcclBackend(std::shared_ptr<GroupRegistry> registry, std::shared_ptr<RegisteredGroup> group)
      : Backend(group->info, registry->world()),
        registry_(std::move(registry)),
        group_(std::move(group)) {
    registry_->add(group_);
  }
  ~NcclBackend() override { registry_->release(*group_); }

  bool accepts(Device device) const override { return device == staging_device(); }
  Device staging_device() const override { return Device::cuda(registry_->device()); }

  std::shared_ptr<Work::State> submit(const Collective& call) override {
    World& world = *this->world();
    world.throw_if_failed(call, info());
    record(call);
    const cuda::DeviceScope scope(registry_->device());
    const cuda::Stream& caller = cuda::current_stream(registry_->device());
    const auto issued = std::make_shared<IssuedCall>();
    issued->call = call;
    if (call.operation == Operation::barrier) issued->call.input = issued->call.output = token();
    issued->fingerprint = fingerprint(call);
    issued->ready.record(caller);
    // A call that is captured in a graph is not watched: it does nothing yet, and its replays are
    // seen only through NCCL's own errors.
    if (caller.is_capturing()) hold_for_graph(issued->call);
    else watch(issued);
    group_->stream.wait(issued->ready);
    try {
      enqueue(issued->call);
    } catch (const Error& error) {
      world.fail({.at = describe(call, info()),
                  .what = fmt::format("rank {}: {}", info().rank, error.what())});
      world.throw_if_failed(call, info());
    }
    const std::lock_guard lock(group_->mutex);
    issued->done.record(group_->stream);
    issued->launched = true;
    return std::make_shared<NcclWork>(registry_, shared_info(), issued);
  }

  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override {
    const cuda::DeviceScope scope(registry_->device());
    const std::string what = fmt::format("creating group '{}'", name);
    const Poll poll = poll_step(*registry_, what, info());
    // Every rank of this group counts every split, so the number tells splits apart; the colour
    // tells the groups of one split apart.
    const int color = members.empty() ? NCCL_SPLIT_NOCOLOR
                                      : *std::min_element(members.begin(), members.end());
    try {
      const auto child = std::make_shared<RegisteredGroup>(
          fmt::format("{}.{}:{}", group_->key, ++splits_, color), subgroup_info(members, name),
          cuda::Stream::create(registry_->device(), true));
      Communicator& parent = group_->communicator;
      if (!parent.has_joined())
        parent.join(registry_->shared_id(*group_, poll), info().rank, info().size, poll);
      const int channels = name.ends_with(normalization_suffix) ? channels_for_normalization
                                                                : NCCL_CONFIG_UNDEF_INT;
      child->communicator.split(parent, color, child->info.rank, channels, poll);
      if (members.empty()) return nullptr;
      return std::make_shared<NcclBackend>(registry_, child);
    } catch (const std::exception& error) {
      // The other ranks need not wait for their deadline.
      world()->fail({.what = fmt::format("rank {}: {}", info().rank, error.what())});
      world()->check_step(what, Deadline(), info());  // throws
      throw;
    }
  }

  void skip_subgroup() override { subgroup({}, "none"); }  // ncclCommSplit needs all ranks

 private:
  // Lets the watcher keep the deadline of a call and its tensors, and drops calls that are done.
  void watch(const std::shared_ptr<IssuedCall>& issued) {
    IssuedCalls finished;  // destroyed after the lock
    const std::lock_guard lock(group_->mutex);
    finished = group_->take_finished();
    group_->last_issued = issued->call.sequence;
    group_->calls.push_back(issued);
  }

  // Keeps the group and the tensors of a call in use until the last replay of the graph that is
  // being captured is over. Every replay uses them, even where the caller has dropped its Work.
  void hold_for_graph(const Collective& call) {
    const auto& graph = cuda::Arena::current(registry_->device());
    if (!graph) return;  // captured by other means than cuda::Graph
    registry_->check_order_of_launches(*group_, graph);
    {
      const std::lock_guard lock(group_->mutex);
      ++group_->graph_collectives;
      group_->captured_in = graph;
    }
    graph->when_graph_is_gone([group = group_, call](const cuda::Stream& last) {
      const auto replayed = std::make_shared<IssuedCall>();
      replayed->call = call;
      replayed->done.record(last);
      const std::lock_guard lock(group->mutex);
      --group->graph_collectives;
      group->stream.wait(replayed->done);
      group->replayed.push_back(replayed);
    });
  }

  // The tensor that a barrier sums.
  const Tensor& token() {
    if (!token_.defined()) token_ = zeros({1}, {.dtype = uint8, .device = staging_device()});
    return token_;
  }

  void enqueue(const Collective& call) {
    const std::int64_t elements = call.input.numel();
    if (elements == 0) return;  // on every rank, or the fingerprints differ
    const void* input = call.input.raw();
    void* output = call.output.raw();
    const auto count = static_cast<std::size_t>(elements);
    const ncclDataType_t type = type_of(call.input.dtype());
    const ncclRedOp_t op = op_of(call.op);
    const cudaStream_t stream = group_->stream.get();
    const auto run = [&](const char* name, const auto& function) {
      group_->communicator.run(name, function);
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
          return ncclReduceScatter(input, output, count / static_cast<std::size_t>(info().size),
                                   type, op, comm, stream);
        });
    }
  }

  std::shared_ptr<GroupRegistry> registry_;
  std::shared_ptr<RegisteredGroup> group_;
  Tensor token_;
  int splits_ = 0;
};

// Identifies this host. NCCL_HOSTID overrides it, as it does for NCCL.
std::string host() {
  if (const char* id = std::getenv("NCCL_HOSTID"); id && *id) return id;
  return host_identity();
}

// Identifies the GPUs that this process sees, each for every process that sees it.
std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  for (int device = 0; device < cuda::device_count(); ++device) {
    cudaDeviceProp properties = {};
    cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", "nccl");
    std::string& text = gpus.emplace_back();
    for (const char byte : properties.uuid.bytes)
      text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return gpus;
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

// Rank 0's answer to every rank: its seat with the local rank and the device that it has, and the
// id of the communicator.
std::vector<std::string> answer(const std::vector<std::string>& texts) {
  std::vector<Seat> seats;
  for (const std::string& text : texts)
    seats.push_back(decode_seat(text, static_cast<int>(seats.size())));
  const char* shared = std::getenv("TUTTI_NCCL_SHARE_GPU");
  choose_devices(seats, shared && std::string(shared) == "1");
  const std::string id = make_id();
  std::vector<std::string> answers;
  for (Seat& seat : seats) {
    seat.gpus = {id};
    answers.push_back(encode(seat));
  }
  return answers;
}

std::shared_ptr<Backend> join(const std::shared_ptr<rendezvous::Store>& store,
                              const ProcessWorldOptions& options) {
  expect_usable_environment();
  const rendezvous::Member& member = store->member();
  const Seat own{host(), std::max(options.local_rank, -1), std::max(options.device, -1),
                 visible_gpus()};
  if (own.device >= 0) const cuda::DeviceScope there(own.device);  // DeviceError where it is not
  const Seat seat = decode_seat(store->gather("seats", encode(own), answer), 0);
  const ncclUniqueId id = parse_id(seat.gpus.empty() ? "" : seat.gpus[0], "world");
  const GroupInfo info{.rank = member.rank,
                       .size = member.size,
                       .local_rank = seat.local_rank,
                       .group = "world",
                       .backend = "nccl",
                       .timeout = member.timeout,
                       .capabilities = capabilities,
                       .world_ranks = all_ranks(member.size)};
  const int device = seat.device;
  const cuda::DeviceScope scope(device);  // DeviceError where it is not there

  const auto registry = std::make_shared<GroupRegistry>(store, device);
  const auto group = std::make_shared<RegisteredGroup>("world", info, cuda::Stream::create(device));
  const Poll poll = poll_step(*registry, "creating NCCL's communicator", info);
  group->communicator.join(id, member.rank, member.size, poll);
  group->communicator.split(group->communicator, 0, member.rank, NCCL_CONFIG_UNDEF_INT, poll);
  close_at_exit(registry);
  return std::make_shared<NcclBackend>(registry, group);
}

}  // namespace

std::string why_unavailable() {
  const std::string why = cuda::why_unavailable();
  return why.empty() ? why_not_loaded() : "no CUDA device: " + why;
}

void set_environment() {
  // The host's order is that of the device too, where collectives of two communicators on two
  // streams are ready at the same time. Ranks with different orders would wait for each other.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // Connects the ranks in the set-up, which can be given up, and not in the first collectives.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

std::shared_ptr<Backend> make_world(const std::shared_ptr<rendezvous::Store>& store,
                                    const ProcessWorldOptions& options) {
  faults::read_environment();
  faults::inject(Fault::Moment::start, store->member().rank, "world");
  try {
    return join(store, options);
  } catch (const std::exception& error) {
    // The others need not wait for their deadline.
    try {
      store->fail(
          {.what = fmt::format("rank {} could not start: {}", store->member().rank, error.what())});
    } catch (const std::exception&) {}
    throw;
  }
}

std::shared_ptr<Backend> make_process_world(const ProcessWorldOptions& options) {
  set_environment();
  return make_world(options.open_store(), options);
}

RanksAsThreads make_thread_ranks(const ThreadWorldOptions& options) {
  expect_usable_environment();
  set_environment();
  const auto table = std::make_shared<rendezvous::SharedTable>();
  return {.join =
              [=](int rank) {
                return make_world(
                    rendezvous::in_memory(table, {rank, options.ranks, {}, options.timeout}),
                    {.local_rank = rank});
              },
          .fail =
              [=](const Failure& failure) {
                rendezvous::in_memory(table, {0, options.ranks})->fail(failure);
              },
          .depart = [](int) {},  // the others see in the table that the rank's group is released
          .finish = [] {}};
}

}  // namespace tutti::distributed::nccl
