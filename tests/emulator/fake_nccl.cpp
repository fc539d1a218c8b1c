// Defines the functions of NCCL that the NCCL backend calls, for ranks that are threads of this
// process and devices of the emulator. They are as non-blocking as NCCL's own: a communicator is in
// progress until all ranks have joined, and so is a first collective for a while; a split returns
// its communicator when its parent is no longer in progress. A collective ends when the streams of
// all ranks have come to it. If they do not come, or their arguments differ, it never ends unless
// it is aborted. An abort returns late, as NCCL's does: when the device is idle and no graph uses
// the communicator. A split whose parent is aborted still returns its communicator. A communicator
// that is never aborted is reported when the program ends.
#include "census.h"
#include "streams.h"

#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/reduce.h>

#include <nccl.h>

#include <cstring>
#include <mutex>
#include <thread>

using namespace tutti;
using distributed::ReduceOp;

namespace {

enum class Kind { all_reduce, all_gather, broadcast, reduce_scatter };

struct Call {
  Kind kind;
  const void* input;
  void* output;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool arrived = false, aborted = false;
};

struct PendingCollective {
  std::map<int, Call> calls;  // by rank
  std::map<int, std::shared_ptr<emulator::Signal>> finished;
  int present = 0;
};

struct RankGroup;

struct Split {
  std::map<int, std::pair<int, int>> requests;  // colour and key, by rank
  std::map<int, std::shared_ptr<RankGroup>> groups;
};

struct RankGroup {
  int size = 0, joined = 0;
  std::map<std::int64_t, PendingCollective> pending;
  std::map<std::int64_t, Split> splits;
};

// The registered memory, by handle.
std::map<void*, void*>& registrations() {
  static auto* all = new std::map<void*, void*>;
  return *all;
}

std::mutex mutex;  // guards all groups and registrations
std::map<std::string, std::shared_ptr<RankGroup>>& groups() {
  static auto* all = new std::map<std::string, std::shared_ptr<RankGroup>>;
  return *all;
}

}  // namespace

// Counts communicators, which must be aborted before the program ends. It waits up to a second for
// those that only a graph used.
struct LeakCheck {
  std::atomic<int> count = 0;
  ~LeakCheck() {
    for (int polls = 0; count > 0; ++polls) {
      if (polls > 1000) emulator::fatal("a communicator of NCCL was never aborted");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  struct Counted;
};
LeakCheck leak_check;

struct LeakCheck::Counted {
  Counted() { ++leak_check.count; }
  ~Counted() { --leak_check.count; }
};

struct ncclComm {
  // The state that captured graphs share with the communicator. It may outlive the communicator.
  struct State {
    std::int64_t calls = 0;
    bool aborted = false;
  };
  std::shared_ptr<RankGroup> group;
  int rank = 0, device = 0;
  std::shared_ptr<State> state = std::make_shared<State>();
  std::int64_t splits = 0;
  ncclComm** child = nullptr;  // where a split in progress stores its result
  int polls_left = 2;          // queries for which the first collective is in progress
  bool connecting = false;
  LeakCheck::Counted counted = {};
};

namespace {

DType dtype_of_nccl(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64: return float64;
    case ncclFloat32: return float32;
    case ncclFloat16: return float16;
    case ncclBfloat16: return bfloat16;
    case ncclInt64: return int64;
    default: return uint8;
  }
}

bool agree(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.root == b.root;
}

void compute(std::map<int, Call>& calls) {
  const Call& first = calls.begin()->second;
  const DType dtype = dtype_of_nccl(first.type);
  const std::size_t bytes = first.count * size_of(dtype);
  const ReduceOp op = first.op == ncclSum   ? ReduceOp::sum
                      : first.op == ncclAvg ? ReduceOp::mean
                      : first.op == ncclMin ? ReduceOp::min
                                            : ReduceOp::max;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const auto& [_, call] : calls) inputs.push_back(call.input), outputs.push_back(call.output);
  switch (first.kind) {
    case Kind::all_reduce:
      return distributed::reduce_in_rank_order(dtype, op, inputs, outputs,
                                               static_cast<std::int64_t>(first.count));
    case Kind::reduce_scatter:
      for (std::size_t r = 0; r < calls.size(); ++r) {
        std::vector<const void*> slices;
        for (const void* input : inputs)
          slices.push_back(static_cast<const char*>(input) + r * bytes);
        distributed::reduce_in_rank_order(dtype, op, slices, {&outputs[r], 1},
                                          static_cast<std::int64_t>(first.count));
      }
      return;
    case Kind::all_gather:
      for (void* output : outputs)
        for (std::size_t r = 0; r < calls.size(); ++r)
          std::memcpy(static_cast<char*>(output) + r * bytes, inputs[r], bytes);
      return;
    case Kind::broadcast:
      for (void* output : outputs)
        std::memmove(output, inputs[static_cast<std::size_t>(first.root)], bytes);
      return;
  }
}

// Computes a collective on the rank's stream. The last rank to arrive computes for all ranks.
void arrive(const std::shared_ptr<RankGroup>& group, std::int64_t number, int rank) {
  const std::lock_guard lock(mutex);
  const auto found = group->pending.find(number);
  if (found == group->pending.end()) return;
  PendingCollective& collective = found->second;
  Call& mine = collective.calls.at(rank);
  if (mine.aborted) return;
  mine.arrived = true;
  if (++collective.present < group->size) return;
  for (const auto& [_, call] : collective.calls)
    if (!call.arrived || call.aborted || !agree(call, mine)) return;
  compute(collective.calls);
  for (const auto& [_, signal] : collective.finished) emulator::raise(signal);
  group->pending.erase(found);
}

// In a census no collective runs (census.h).
ncclResult_t count(ncclComm* comm, const Call& call) {
  constexpr const char* names[] = {"ncclAllReduce", "ncclAllGather", "ncclBroadcast",
                                   "ncclReduceScatter"};
  const bool broadcasts = call.kind == Kind::broadcast;
  emulator::census::note_collective(
      {.function = names[static_cast<int>(call.kind)],
       .input = call.input,
       .output = call.output,
       .bytes = call.count * size_of(dtype_of_nccl(call.type)),
       .group = comm->group.get(),
       .number = comm->state->calls++,
       .copies = call.kind == Kind::all_gather ? comm->group->size : 1,
       .is_received = broadcasts && call.root != comm->rank,
       .is_sent = broadcasts && call.root == comm->rank});
  return ncclSuccess;
}

ncclResult_t enqueue_collective(ncclComm* comm, cudaStream_t stream, const Call& call) {
  if (emulator::census::device()) return count(comm, call);
  const auto begin = [group = comm->group, state = comm->state, rank = comm->rank, call] {
    const auto signal = emulator::make_signal();
    const std::lock_guard lock(mutex);
    const std::int64_t number = state->calls++;
    PendingCollective& collective = group->pending[number];
    collective.calls.emplace(rank, call).first->second.aborted = state->aborted;
    collective.finished.emplace(rank, signal);
    if (state->aborted) emulator::raise(signal);
    return emulator::SharedWork{[group, number, rank] { arrive(group, number, rank); }, signal};
  };
  emulator::enqueue_shared(emulator::stream_of(stream), begin);
  comm->connecting = comm->polls_left > 0;
  return comm->connecting ? ncclInProgress : ncclSuccess;
}

}  // namespace

std::string tutti::distributed::nccl::why_not_loaded() { return {}; }

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage"
         : result == ncclSuccess    ? "no error"
                                    : "an error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number = 0;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "fake %d", ++number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  const std::lock_guard lock(mutex);
  auto& group = groups()[id.internal];
  if (!group)
    group = std::make_shared<RankGroup>(RankGroup{.size = size, .pending = {}, .splits = {}});
  ++group->joined;
  *comm = new ncclComm{.group = group, .rank = rank};
  cudaGetDevice(&(*comm)->device);
  if (group->joined == size) groups().erase(id.internal);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  if (config->blocking != 0 || comm->child) return ncclInvalidUsage;
  const std::lock_guard lock(mutex);
  comm->group->splits[comm->splits].requests[comm->rank] = {color, key};
  comm->child = child;
  *child = nullptr;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  *result = ncclSuccess;
  if (comm->group->joined < comm->group->size) return *result = ncclInProgress, ncclSuccess;
  if (comm->connecting) {
    comm->connecting = --comm->polls_left > 0;
    return *result = ncclInProgress, ncclSuccess;
  }
  if (!comm->child) return ncclSuccess;
  Split& split = comm->group->splits[comm->splits];
  if (static_cast<int>(split.requests.size()) < comm->group->size)
    return *result = ncclInProgress, ncclSuccess;
  const auto [color, key] = split.requests.at(comm->rank);
  if (color >= 0) {
    int size = 0, before = 0;
    for (const auto& [rank, request] : split.requests) {
      if (request.first != color) continue;
      ++size;
      before += std::pair(request.second, rank) < std::pair(key, comm->rank);
    }
    auto& group = split.groups[color];
    if (!group)
      group = std::make_shared<RankGroup>(
          RankGroup{.size = size, .joined = size, .pending = {}, .splits = {}});
    *comm->child = new ncclComm{.group = group, .rank = before, .device = comm->device};
  }
  comm->child = nullptr;
  ++comm->splits;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(mutex);
    comm->state->aborted = true;
    for (auto& [_, collective] : comm->group->pending) {
      const auto call = collective.calls.find(comm->rank);
      if (call == collective.calls.end()) continue;
      call->second.aborted = true;  // it is never computed, because its memory may be freed
      emulator::raise(collective.finished.at(comm->rank));
    }
    if (comm->child)
      *comm->child = new ncclComm{.group = std::make_shared<RankGroup>(), .device = comm->device};
  }
  emulator::wait_until_idle(comm->device);
  while (comm->state.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  {
    const std::lock_guard lock(mutex);
    std::erase_if(registrations(), [&](const auto& each) {
      return static_cast<std::pair<ncclComm_t, void*>*>(each.first)->first == comm;
    });
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  return cudaMalloc(data, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* data) {
  {
    const std::lock_guard lock(mutex);
    for (const auto& [_, registered] : registrations())
      if (registered == data) return ncclInvalidUsage;
  }
  // ncclMemFree, unlike cudaFree, does not wait for the devices.
  return cudaFreeAsync(data, nullptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, std::size_t, void** handle) {
  const std::lock_guard lock(mutex);
  *handle = new std::pair(comm, data);
  for (const auto& [_, registered] : registrations())
    if (registered == data) return ncclInvalidUsage;  // stricter than NCCL: memory registers once
  registrations()[*handle] = data;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(mutex);
  const auto* made = static_cast<std::pair<ncclComm_t, void*>*>(handle);
  if (made->first != comm || registrations().erase(handle) == 0) return ncclInvalidUsage;
  return delete made, ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective(comm, stream, {Kind::all_reduce, input, output, count, type, op, 0});
}
ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return enqueue_collective(comm, stream,
                            {Kind::reduce_scatter, input, output, count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective(comm, stream,
                            {Kind::all_gather, input, output, count, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective(comm, stream,
                            {Kind::broadcast, input, output, count, type, ncclSum, root});
}

}  // extern "C"
