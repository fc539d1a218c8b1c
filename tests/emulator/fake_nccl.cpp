// The functions of NCCL that the backend calls, among ranks that are threads of this process and
// devices of the emulator. As non-blocking as NCCL's: communicators are in progress until all ranks
// have come, a first collective is for a while, a split gives its communicator when the parent has
// left that state. A collective is enqueued on its stream and ends there when all ranks' streams
// have come to it; where they do not, or differ, it never ends, until it is aborted. An abort
// returns late, as NCCL's does: when the device is idle and no graph holds the communicator. A
// split whose parent is aborted meanwhile still gives its communicator, and whoever leaves one
// behind is told when the program ends.
#include "streams.h"

#include "../../distributed/reduce.h"

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

struct Meeting {
  std::map<int, Call> calls;  // by rank
  std::map<int, std::shared_ptr<emulator::Moment>> gates;
  int present = 0;
};

struct World;

struct Split {
  std::map<int, std::pair<int, int>> wishes;  // by rank: colour and key
  std::map<int, std::shared_ptr<World>> worlds;
};

struct World {
  int size = 0, joined = 0;
  std::map<std::int64_t, Meeting> meetings;
  std::map<std::int64_t, Split> splits;
};

// By handle.
std::map<void*, void*>& registrations() {
  static auto* all = new std::map<void*, void*>;
  return *all;
}

std::mutex mutex;  // guards all of it
std::map<std::string, std::shared_ptr<World>>& worlds() {
  static auto* all = new std::map<std::string, std::shared_ptr<World>>;
  return *all;
}

}  // namespace

// Communicators must be gone when the program ends; those that only a graph held may take a moment.
struct LeftBehind {
  std::atomic<int> count = 0;
  ~LeftBehind() {
    for (int looks = 0; count > 0; ++looks) {
      if (looks > 1000)
        emulator::fatal("a communicator of NCCL was left behind: nobody has aborted it");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  struct One;
};
LeftBehind left_behind;

struct LeftBehind::One {
  One() { ++left_behind.count; }
  ~One() { --left_behind.count; }
};

// What a graph knows of a communicator, which may be gone when it is replayed.
struct Member {
  std::int64_t calls = 0;
  bool aborted = false;
};

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0, device = 0;
  std::shared_ptr<Member> member = std::make_shared<Member>();
  std::int64_t splits = 0;
  ncclComm** child = nullptr;  // where the split under way is to put it
  int looks_left = 2;          // in which the first collective is in progress
  bool connecting = false;
  LeftBehind::One counted = {};
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

// On the stream of the rank: the last to come computes for all.
void arrive(const std::shared_ptr<World>& world, std::int64_t number, int rank) {
  const std::lock_guard lock(mutex);
  const auto found = world->meetings.find(number);
  if (found == world->meetings.end()) return;
  Meeting& meeting = found->second;
  Call& mine = meeting.calls.at(rank);
  if (mine.aborted) return;
  mine.arrived = true;
  if (++meeting.present < world->size) return;
  for (const auto& [_, call] : meeting.calls)
    if (!call.arrived || call.aborted || !agree(call, mine)) return;
  compute(meeting.calls);
  for (const auto& [_, gate] : meeting.gates) emulator::open_gate(gate);
  world->meetings.erase(found);
}

ncclResult_t collect(ncclComm* comm, cudaStream_t stream, const Call& call) {
  const auto begin = [world = comm->world, member = comm->member, rank = comm->rank, call] {
    const auto gate = emulator::make_gate();
    const std::lock_guard lock(mutex);
    const std::int64_t number = member->calls++;
    Meeting& meeting = world->meetings[number];
    meeting.calls.emplace(rank, call).first->second.aborted = member->aborted;
    meeting.gates.emplace(rank, gate);
    if (member->aborted) emulator::open_gate(gate);
    return emulator::Shared{[world, number, rank] { arrive(world, number, rank); }, gate};
  };
  emulator::enqueue_shared(emulator::stream_of(stream), begin);
  comm->connecting = comm->looks_left > 0;
  return comm->connecting ? ncclInProgress : ncclSuccess;
}

}  // namespace

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
  auto& world = worlds()[id.internal];
  if (!world) world = std::make_shared<World>(World{.size = size, .meetings = {}, .splits = {}});
  ++world->joined;
  *comm = new ncclComm{.world = world, .rank = rank};
  cudaGetDevice(&(*comm)->device);
  if (world->joined == size) worlds().erase(id.internal);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  if (config->blocking != 0 || comm->child) return ncclInvalidUsage;
  const std::lock_guard lock(mutex);
  comm->world->splits[comm->splits].wishes[comm->rank] = {color, key};
  comm->child = child;
  *child = nullptr;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  *result = ncclSuccess;
  if (comm->world->joined < comm->world->size) return *result = ncclInProgress, ncclSuccess;
  if (comm->connecting) {
    comm->connecting = --comm->looks_left > 0;
    return *result = ncclInProgress, ncclSuccess;
  }
  if (!comm->child) return ncclSuccess;
  Split& split = comm->world->splits[comm->splits];
  if (static_cast<int>(split.wishes.size()) < comm->world->size)
    return *result = ncclInProgress, ncclSuccess;
  const auto [color, key] = split.wishes.at(comm->rank);
  if (color >= 0) {
    int size = 0, before = 0;
    for (const auto& [rank, wish] : split.wishes) {
      if (wish.first != color) continue;
      ++size;
      before += std::pair(wish.second, rank) < std::pair(key, comm->rank);
    }
    auto& world = split.worlds[color];
    if (!world)
      world = std::make_shared<World>(
          World{.size = size, .joined = size, .meetings = {}, .splits = {}});
    *comm->child = new ncclComm{.world = world, .rank = before, .device = comm->device};
  }
  comm->child = nullptr;
  ++comm->splits;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(mutex);
    comm->member->aborted = true;
    for (auto& [_, meeting] : comm->world->meetings) {
      const auto call = meeting.calls.find(comm->rank);
      if (call == meeting.calls.end()) continue;
      call->second.aborted = true;  // and so is never computed: its memory may be gone
      emulator::open_gate(meeting.gates.at(comm->rank));
    }
    if (comm->child)
      *comm->child = new ncclComm{.world = std::make_shared<World>(), .device = comm->device};
  }
  emulator::wait_until_idle(comm->device);
  while (comm->member.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
  // As NCCL's own memory, and unlike cudaFree, this does not wait for the devices.
  return cudaFreeAsync(data, nullptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, std::size_t, void** handle) {
  const std::lock_guard lock(mutex);
  *handle = new std::pair(comm, data);
  for (const auto& [_, registered] : registrations())
    if (registered == data) return ncclInvalidUsage;  // once is enough
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
  return collect(comm, stream, {Kind::all_reduce, input, output, count, type, op, 0});
}
ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return collect(comm, stream, {Kind::reduce_scatter, input, output, count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collect(comm, stream, {Kind::all_gather, input, output, count, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collect(comm, stream, {Kind::broadcast, input, output, count, type, ncclSum, root});
}

}  // extern "C"
