// Defines the functions of NCCL that the NCCL backend calls, for ranks that are threads of this
// process and devices of the emulator. It is as unfriendly as NCCL may be:
//
// - Communicators are set up without blocking. Each such call is in progress for a random number of
//   queries at least; a split returns its communicator when its parent is no longer in progress.
// - Collectives must be on a communicator that blocks, because NCCL starts a thread for each on
//   another. With NCCL_RUNTIME_CONNECT other than 0 the first one of a communicator waits inside
//   the call until all ranks have called it, or until the communicator is aborted.
// - A device runs one collective at a time: in the order of the calls with
//   NCCL_LAUNCH_ORDER_IMPLICIT=1, else a random one of those that are ready, so that ranks may wait
//   for each other in a circle. A captured graph gets the same order as edges.
// - A collective ends when it runs on all ranks. If it never does, or their arguments differ, it
//   never ends unless it is aborted. An abort returns late: when the device is idle and no graph
//   uses the communicator. A split whose parent is aborted still returns its communicator. A
//   communicator that is never aborted is reported when the program ends, and a call on one that
//   does not block and is being aborted, at once.
//
// TUTTI_EMULATOR_SEED seeds what is random. TUTTI_FAKE_NCCL_SPLIT="RANK.SPLIT:fail" or
// "RANK.SPLIT:hang" is a fault in the SPLIT-th split, from 0, of a communicator on one rank; a
// split that hangs does so until it is aborted, and the other ranks know nothing of it.
// TUTTI_FAKE_NCCL_CONCURRENT=1 lets a device run any number of collectives at a time.
// TUTTI_FAKE_NCCL_VERSION=22500 makes it NCCL 2.25.
#include "census.h"
#include "streams.h"

#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/data_flow.h>

#include <nccl.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <list>
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
  int device = 0;
  bool runs = false, aborted = false;
};

struct PendingCollective {
  std::map<int, Call> calls;  // by rank
  std::map<int, std::shared_ptr<emulator::Signal>> finished;
};

struct RankGroup;

struct Split {
  std::map<int, std::pair<int, int>> requests;  // colour and key, by rank
  std::map<int, std::shared_ptr<RankGroup>> groups;
};

struct RankGroup {
  int size = 0, joined = 0;
  int connecting = 0;  // ranks whose first collective has been called
  std::map<std::int64_t, PendingCollective> pending;
  std::map<std::int64_t, Split> splits;
};

std::mutex mutex;  // guards all groups and devices
std::condition_variable connected_or_aborted;
std::vector<int>& channels() {
  static auto* all = new std::vector<int>;
  return *all;
}
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
  bool blocks = false;
  std::int64_t splits = 0;
  ncclComm** child = nullptr;  // where a split in progress stores its result
  bool child_blocks = false;
  int child_channels = 0;
  emulator::Random random{static_cast<std::uint64_t>(1000 + rank)};
  std::uint64_t polls_left = 1 + random.below(4);  // queries that are in progress in any case
  bool has_connected = false;
  int inside = 0;  // threads in the call of a collective
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

bool is_set(const char* variable, const char* value) {
  const char* text = std::getenv(variable);
  return text && std::string(text) == value;
}

// In a census no collective runs (census.h).
ncclResult_t count(const Call& call) {
  constexpr const char* names[] = {"ncclAllReduce", "ncclAllGather", "ncclBroadcast",
                                   "ncclReduceScatter"};
  const std::size_t bytes = call.count * size_of(dtype_of_nccl(call.type));
  emulator::census::note({.kind = emulator::census::Kind::collective,
                          .name = names[static_cast<int>(call.kind)],
                          .bytes = static_cast<double>(bytes)});
  return ncclSuccess;
}

// One rank's part of a collective, from the call to the end.
struct Part {
  std::shared_ptr<RankGroup> group;
  std::int64_t number;
  int rank;
  bool ordered, concurrent;
  bool ready = false, runs = false;  // its stream has come to it; the device has begun it
};

struct Device {
  std::list<Part> parts;  // in the order of the calls
  bool busy = false;      // one of them runs
  emulator::Random random;
  // The latest capture with a collective, which must not keep its graph, and the point after that
  // collective.
  std::weak_ptr<emulator::Capture> capture = {};
  emulator::Signal captured = {};
};
Device& device_of(int index) {
  static auto* all = new std::map<int, Device>;
  return all->try_emplace(index, Device{.parts = {}, .random = emulator::Random(2000 + index)})
      .first->second;
}

void remove(Device& device, const RankGroup* group, std::int64_t number, int rank) {
  const auto part = std::find_if(device.parts.begin(), device.parts.end(), [&](const Part& each) {
    return each.group.get() == group && each.number == number && each.rank == rank;
  });
  if (part == device.parts.end()) return;
  if (part->runs && !part->concurrent) device.busy = false;
  device.parts.erase(part);
}

// Ends the collective of `part`, which has begun to run, if it runs on all ranks now. Returns the
// devices that can go on.
std::vector<int> end_if_all_run(const Part& part) {
  const std::shared_ptr<RankGroup> group = part.group;
  const auto found = group->pending.find(part.number);
  PendingCollective& collective = found->second;
  Call& mine = collective.calls.at(part.rank);
  mine.runs = true;
  if (static_cast<int>(collective.calls.size()) < group->size) return {};
  for (const auto& [_, call] : collective.calls)
    if (!call.runs || call.aborted || !agree(call, mine)) return {};
  {
    const emulator::DeviceAccess access;
    compute(collective.calls);
  }
  std::vector<int> devices;
  for (const auto& [rank, call] : collective.calls) {
    devices.push_back(call.device);
    remove(device_of(call.device), group.get(), found->first, rank);
  }
  for (const auto& [_, signal] : collective.finished) emulator::raise(signal);
  group->pending.erase(found);
  return devices;
}

// Returns the part that an idle device begins next, or null.
Part* next_part(Device& device) {
  std::vector<Part*> ready;
  for (Part& part : device.parts) {
    if (part.concurrent) continue;
    if (part.ordered) return part.ready ? &part : nullptr;
    if (part.ready) ready.push_back(&part);
  }
  return ready.empty() ? nullptr : ready[device.random.below(ready.size())];
}

// Lets devices begin what they can, these and those that go on through them.
void run_devices(std::vector<int> devices) {
  while (!devices.empty()) {
    Device& device = device_of(devices.back());
    devices.pop_back();
    Part* part = device.busy ? nullptr : next_part(device);
    if (!part) continue;
    device.busy = part->runs = true;
    const std::vector<int> more = end_if_all_run(*part);
    devices.insert(devices.end(), more.begin(), more.end());
  }
}

// Is called when the rank's stream has come to its part of a collective.
void make_ready(int device_index, const RankGroup* group, std::int64_t number, int rank) {
  const std::lock_guard lock(mutex);
  Device& device = device_of(device_index);
  const auto part = std::find_if(device.parts.begin(), device.parts.end(), [&](const Part& each) {
    return each.group.get() == group && each.number == number && each.rank == rank;
  });
  if (part == device.parts.end()) return;  // aborted
  part->ready = true;
  if (part->concurrent) {
    part->runs = true;
    return run_devices(end_if_all_run(*part));
  }
  if (part->ordered) return run_devices({device_index});
  // Others may become ready before the device chooses.
  std::thread([device_index] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::lock_guard later(mutex);
    run_devices({device_index});
  }).detach();
}

// Waits for the first collective of all ranks. Returns false if the communicator is aborted.
bool connect(ncclComm* comm) {
  std::unique_lock lock(mutex);
  if (std::exchange(comm->has_connected, true) || is_set("NCCL_RUNTIME_CONNECT", "0")) return true;
  ++comm->inside;
  ++comm->group->connecting;
  connected_or_aborted.notify_all();
  connected_or_aborted.wait(
      lock, [&] { return comm->state->aborted || comm->group->connecting >= comm->group->size; });
  --comm->inside;
  connected_or_aborted.notify_all();
  return !comm->state->aborted;
}

// Orders the collectives of a capture by edges, as NCCL does, while `enqueue` adds one.
void capture_in_order(const emulator::StreamPtr& stream, int device,
                      const std::function<void()>& enqueue) {
  std::unique_lock lock(mutex);
  const auto latest = std::make_shared<emulator::Signal>(device_of(device).captured);
  latest->capture = device_of(device).capture.lock();
  lock.unlock();
  if (latest->capture == stream->capture) emulator::wait(stream, latest);
  enqueue();
  const auto after = emulator::record(stream);
  lock.lock();
  device_of(device).capture = after->capture;
  device_of(device).captured = *after;
  device_of(device).captured.capture = nullptr;
}

ncclResult_t enqueue_collective(ncclComm* comm, cudaStream_t handle, Call call) {
  if (!comm->blocks) return ncclInvalidUsage;
  if (emulator::census::device()) return count(call);
  if (!connect(comm)) return ncclRemoteError;
  const bool ordered = is_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  const bool concurrent = is_set("TUTTI_FAKE_NCCL_CONCURRENT", "1");
  call.device = comm->device;
  const auto begin = [group = comm->group, state = comm->state, rank = comm->rank, call, ordered,
                      concurrent] {
    const auto signal = emulator::make_signal();
    const std::lock_guard lock(mutex);
    const std::int64_t number = state->calls++;
    PendingCollective& collective = group->pending[number];
    collective.calls.emplace(rank, call).first->second.aborted = state->aborted;
    collective.finished.emplace(rank, signal);
    if (state->aborted) emulator::raise(signal);
    else device_of(call.device).parts.push_back({group, number, rank, ordered, concurrent});
    const auto work = [group, number, rank, device = call.device] {
      make_ready(device, group.get(), number, rank);
    };
    return emulator::SharedWork{work, signal};
  };
  const emulator::StreamPtr stream = emulator::stream_of(handle);
  const auto enqueue = [&] { emulator::enqueue_shared(stream, begin); };
  if (ordered && emulator::is_capturing(stream)) capture_in_order(stream, comm->device, enqueue);
  else enqueue();
  return ncclSuccess;
}

// The fault that TUTTI_FAKE_NCCL_SPLIT asks for in the split under way of `comm`: "fail", "hang" or
// nothing.
std::string fault_of_split(const ncclComm* comm) {
  const char* text = std::getenv("TUTTI_FAKE_NCCL_SPLIT");
  const std::string here = fmt::format("{}.{}:", comm->rank, comm->splits);
  return text && std::string(text).starts_with(here) ? text + here.size() : "";
}

// NCCL would read freed memory where a thread sets something up while another aborts.
void expect_not_aborted(const ncclComm* comm, const char* call) {
  if (comm->state->aborted)
    emulator::fatal(fmt::format("{} on a communicator that is being aborted", call));
}

// Makes the new communicator of a split that all ranks have asked for.
void finish_split(ncclComm* comm) {
  Split& split = comm->group->splits[comm->splits];
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
    *comm->child = new ncclComm{
        .group = group, .rank = before, .device = comm->device, .blocks = comm->child_blocks};
  }
  channels().push_back(comm->child_channels);
  comm->child = nullptr;
  ++comm->splits;
}

}  // namespace

std::string tutti::distributed::nccl::why_not_loaded() { return {}; }

std::vector<int> emulator::nccl_channels() {
  const std::lock_guard lock(mutex);
  return channels();
}

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage"
         : result == ncclSuccess    ? "no error"
                                    : "an error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetVersion(int* version) {
  const char* other = std::getenv("TUTTI_FAKE_NCCL_VERSION");
  return *version = other ? std::atoi(other) : NCCL_VERSION_CODE, ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number = 0;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "fake %d", ++number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;  // it could not be given up
  const std::lock_guard lock(mutex);
  auto& group = groups()[id.internal];
  if (!group)
    group = std::make_shared<RankGroup>(RankGroup{.size = size, .pending = {}, .splits = {}});
  ++group->joined;
  channels().push_back(config->maxCTAs);
  *comm = new ncclComm{.group = group, .rank = rank};
  cudaGetDevice(&(*comm)->device);
  if (group->joined == size) groups().erase(id.internal);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  if (comm->blocks || comm->child) return ncclInvalidUsage;
  const std::lock_guard lock(mutex);
  expect_not_aborted(comm, "ncclCommSplit");
  *child = nullptr;
  comm->polls_left = 1 + comm->random.below(4);
  comm->child = child;
  comm->child_blocks = config->blocking != 0;
  comm->child_channels = config->maxCTAs;
  if (fault_of_split(comm) != "fail")
    comm->group->splits[comm->splits].requests[comm->rank] = {color, key};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  *result = ncclSuccess;
  if (comm->blocks) return ncclSuccess;
  expect_not_aborted(comm, "ncclCommGetAsyncError");
  *result = ncclInProgress;
  if (comm->group->joined < comm->group->size) return ncclSuccess;
  if (comm->polls_left > 0) return --comm->polls_left, ncclSuccess;
  if (comm->child) {
    const std::string fault = fault_of_split(comm);
    if (fault == "fail") return *result = ncclSystemError, ncclSuccess;
    const Split& split = comm->group->splits[comm->splits];
    if (fault == "hang" || static_cast<int>(split.requests.size()) < comm->group->size)
      return ncclSuccess;
    finish_split(comm);
  }
  *result = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    std::unique_lock lock(mutex);
    comm->state->aborted = true;
    connected_or_aborted.notify_all();
    // Kinder than NCCL, which frees what that thread uses.
    connected_or_aborted.wait(lock, [&] { return comm->inside == 0; });
    for (auto& [number, collective] : comm->group->pending) {
      const auto call = collective.calls.find(comm->rank);
      if (call == collective.calls.end()) continue;
      call->second.aborted = true;  // it is never computed, because its memory may be freed
      remove(device_of(comm->device), comm->group.get(), number, comm->rank);
      emulator::raise(collective.finished.at(comm->rank));
    }
    run_devices({comm->device});
    if (comm->child)
      *comm->child = new ncclComm{.group = std::make_shared<RankGroup>(),
                                  .rank = 0,
                                  .device = comm->device,
                                  .blocks = comm->child_blocks};
  }
  emulator::wait_until_idle(comm->device);
  while (comm->state.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  delete comm;
  return ncclSuccess;
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
