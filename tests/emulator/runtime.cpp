// Defines the functions of the CUDA runtime that the library calls, for eight emulated devices.
#include "census.h"
#include "streams.h"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

using namespace emulator;

// CUDA's handles point to these structs.
struct CUevent_st {
  int device;
  std::shared_ptr<Signal> signal;
};
struct CUgraph_st {
  std::shared_ptr<Graph> graph;
};
struct CUgraphExec_st {
  std::shared_ptr<Graph> graph;
};

namespace {

// The emulated devices have the limits of an H200, but few multiprocessors and a small L2 cache, so
// that small shapes take the code paths of large ones.
constexpr int devices = 8, multiprocessors = 3;
constexpr std::size_t shared_per_block = 48 << 10;  // that a launch may use without a request
constexpr int l2_bytes = 1 << 20;

// The properties that a census changes.
int multiprocessor_count() {
  return census::device() ? census::device()->multiprocessors : multiprocessors;
}
int compute_major() { return census::device() ? census::device()->compute_major : 9; }
int l2_size() { return census::device() ? census::device()->l2_bytes : l2_bytes; }

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

// The calling thread's context, as CUDA would have made it by now; null before.
thread_local CUcontext context = nullptr;
thread_local std::size_t thread_number = 0;  // from 1, in the order of their first contexts
struct Contexts {
  std::mutex mutex;
  std::vector<std::set<int>> of_thread;
};
Contexts& all_contexts() {
  static auto* all = new Contexts;
  return *all;
}
CUresult current_context(CUcontext* current) { return *current = context, CUDA_SUCCESS; }

cudaError_t result(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, Binder> known;
};
Kernels& kernels() {
  static auto* k = new Kernels;
  return *k;
}

struct PinnedBlock {
  std::size_t bytes;
  bool is_mapped;  // kernels may access it
};
struct Pinned {
  std::mutex mutex;
  std::map<const char*, PinnedBlock> blocks;
};
Pinned& pinned() {
  static auto* p = new Pinned;
  return *p;
}

bool is_pinned(const void* address) {
  const std::lock_guard lock(pinned().mutex);
  const auto* a = static_cast<const char*>(address);
  const auto after = pinned().blocks.upper_bound(a);
  if (after == pinned().blocks.begin()) return false;
  const auto block = std::prev(after);
  return a < block->first + block->second.bytes;
}

void deduce_kind(cudaMemcpyKind& kind, const void* to, const void* from) {
  if (kind != cudaMemcpyDefault) return;
  const bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  kind = to_device     ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
         : from_device ? cudaMemcpyDeviceToHost
                       : cudaMemcpyHostToHost;
}

void expect_host(const void* address, const char* call) {
  if (device_of(address) >= 0)
    fatal(std::string(call) + ": an address in device memory was passed as a host address");
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 const StreamPtr& stream) {
  if (bytes == 0) return cudaSuccess;
  deduce_kind(kind, to, from);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  to_device ? expect_allocated(to, bytes, "cudaMemcpy") : expect_host(to, "cudaMemcpy");
  from_device ? expect_allocated(from, bytes, "cudaMemcpy") : expect_host(from, "cudaMemcpy");
  const void* host = to_device ? from_device ? nullptr : from : to;
  if (host && !is_pinned(host))
    if (const cudaError_t status = expect_not_captured(stream); status != cudaSuccess)
      return result(status);
  if (census::device()) return census::note_copy(to, bytes, kind), cudaSuccess;
  // For pageable memory the call returns after the source is read or the destination is complete.
  if (to_device && !from_device && !is_pinned(from)) {
    const auto* source = static_cast<const char*>(from);
    return result(enqueue(stream, [to, staged = std::vector<char>(source, source + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    }));
  }
  const cudaError_t status = enqueue(stream, [=] { std::memmove(to, from, bytes); });
  if (status == cudaSuccess && !to_device && !is_pinned(to)) return result(finish(stream));
  return result(status);
}

cudaError_t pool_of(cudaMemPool_t* pool, int device) {
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<std::uintptr_t>(device) + 1);
  return cudaSuccess;
}
int device_of_pool(cudaMemPool_t pool) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(pool)) - 1;
}

}  // namespace

namespace emulator {

void use_context() {
  const auto own = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(current_device) + 1);
  if (std::exchange(context, own) == own) return;
  Contexts& all = all_contexts();
  const std::lock_guard lock(all.mutex);
  if (thread_number == 0) all.of_thread.emplace_back(), thread_number = all.of_thread.size();
  all.of_thread[thread_number - 1].insert(current_device);
}

std::vector<std::set<int>> contexts() {
  const std::lock_guard lock(all_contexts().mutex);
  return all_contexts().of_thread;
}

std::function<void(std::size_t)>& on_host_alloc() {
  static std::function<void(std::size_t)> action;
  return action;
}

void register_kernel(const void* kernel, Binder binder) {
  const std::lock_guard lock(kernels().mutex);
  kernels().known[kernel] = binder;
}

}  // namespace emulator

extern "C" {

// ---- devices

cudaError_t cudaDriverGetVersion(int* version) {
  const char* other = std::getenv("TUTTI_EMULATOR_DRIVER");
  return *version = other ? std::atoi(other) : CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver < CUDART_VERSION / 1000 * 1000) return result(cudaErrorInsufficientDriver);
  return *count = devices, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return result(cudaErrorInvalidDevice);
  current_device = device;
  return use_context(), cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  if (std::strcmp(symbol, "cuCtxGetCurrent") != 0) return result(cudaErrorSymbolNotFound);
  return *function = reinterpret_cast<void*>(&current_context), cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  use_context();
  census::note_call("cudaDeviceSynchronize");
  return result(finish_device(current_device));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  use_context();
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  *p = {};
  p->uuid.bytes[0] = static_cast<char>(device + 1);
  std::strcpy(p->name, "tutti's CUDA emulator");
  p->major = compute_major();
  p->totalGlobalMem = memory_bytes();
  p->sharedMemPerBlock = shared_per_block;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->multiProcessorCount = multiprocessor_count();
  p->l2CacheSize = l2_size();
  p->unifiedAddressing = p->memoryPoolsSupported = p->asyncEngineCount = 1;
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaSuccess                 ? "cudaSuccess"
         : status == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                               : "an error of the CUDA emulator";
}
const char* cudaGetErrorString(cudaError_t status) {
  static thread_local std::string text;
  text = status == cudaErrorMemoryAllocation ? "out of memory"
                                             : "status " + std::to_string(static_cast<int>(status));
  return text.c_str();
}

// ---- memory

cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t handle) {
  const StreamPtr stream = stream_of(handle);
  if (!is_capturing(stream))
    if (const cudaError_t status = expect_no_capture(); status != cudaSuccess)
      return result(status);
  census::note_call("cudaMallocAsync", static_cast<double>(bytes));
  *block = bytes == 0 ? nullptr : allocate(bytes, stream->device);
  if (bytes == 0) return cudaSuccess;
  if (*block == nullptr) return result(cudaErrorMemoryAllocation);
  if (stream->capture) stream->capture->graph->memory.push_back(*block);
  return result(enqueue(stream, [address = *block] { poison(address); }));
}
cudaError_t cudaFreeAsync(void* block, cudaStream_t handle) {
  if (block == nullptr) return cudaSuccess;
  const StreamPtr stream = stream_of(handle);
  if (census::note_call("cudaFreeAsync") && !stream->capture) return release(block), cudaSuccess;
  if (stream->capture) {
    const auto& own = stream->capture->graph->memory;
    // Memory that a graph allocated belongs to it until it is destroyed, for the next replay.
    if (std::find(own.begin(), own.end(), block) != own.end())
      return result(enqueue(stream, [=] { poison(block); }));
  }
  return result(enqueue(stream, [=] { release(block); }));
}
cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  use_context();
  if (const cudaError_t status = expect_no_capture(); status != cudaSuccess) return result(status);
  *block = allocate(bytes, current_device);
  if (*block == nullptr) return result(cudaErrorMemoryAllocation);
  if (census::note_call("cudaMalloc", static_cast<double>(bytes))) return cudaSuccess;
  const DeviceAccess access;
  poison(*block);
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  use_context();
  if (block == nullptr) return cudaSuccess;
  if (const cudaError_t status = expect_no_capture(); status != cudaSuccess) return result(status);
  for (int d = 0; d < devices; ++d) wait_until_idle(d);
  release(block);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  use_context();
  census::note_call("cudaMemGetInfo");
  *total = memory_bytes();
  *free = *total - usage(current_device).live;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return pool_of(pool, device);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void*) {
  if (attribute == cudaMemPoolAttrUsedMemHigh) reset_peak(device_of_pool(pool));
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  census::note_call("cudaMemPoolGetAttribute");
  const Usage used = usage(device_of_pool(pool));
  const bool high = attribute == cudaMemPoolAttrReservedMemHigh ||
                    attribute == cudaMemPoolAttrUsedMemHigh;
  *static_cast<std::uint64_t*>(value) = high ? used.peak : used.live;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }

cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned flags) {
  use_context();
  if (on_host_alloc()) on_host_alloc()(bytes);
  if (const cudaError_t status = expect_no_capture(); status != cudaSuccess) return result(status);
  *block = std::malloc(bytes);
  if (census::note_call("cudaHostAlloc")) std::memset(*block, 0, bytes);
  const std::lock_guard lock(pinned().mutex);
  pinned().blocks[static_cast<const char*>(*block)] = {bytes, (flags & cudaHostAllocMapped) != 0};
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* block, unsigned) {
  use_context();
  const std::lock_guard lock(pinned().mutex);
  const auto found = pinned().blocks.find(static_cast<const char*>(block));
  if (found == pinned().blocks.end() || !found->second.is_mapped)
    return result(cudaErrorInvalidValue);
  return *on_device = block, cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) {
  use_context();
  if (const cudaError_t status = expect_no_capture(); status != cudaSuccess) return result(status);
  for (int d = 0; d < devices; ++d) wait_until_idle(d);
  const std::lock_guard lock(pinned().mutex);
  pinned().blocks.erase(static_cast<const char*>(block));
  std::free(block);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, kind, stream_of(stream));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(stream));
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t status = expect_no_capture(); status != cudaSuccess) return result(status);
  const cudaError_t status = copy(to, from, bytes, kind, stream_of(nullptr));
  return status == cudaSuccess ? result(finish(stream_of(nullptr))) : status;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  expect_allocated(to, bytes, "cudaMemsetAsync");
  census::note(
      {.kind = census::Kind::fill, .name = "cudaMemsetAsync", .bytes = static_cast<double>(bytes)});
  return result(enqueue(stream_of(stream), [=] { std::memset(to, value, bytes); }));
}

// ---- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  use_context();
  const char* const refused = std::getenv("TUTTI_EMULATOR_NO_PRIORITY");
  if (refused && priority != 0 && std::atoi(refused) == current_device)
    return result(cudaErrorMemoryAllocation);
  *stream = handle_of(make_stream(current_device, (flags & cudaStreamNonBlocking) == 0));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy_stream(stream), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  census::note_call("cudaStreamSynchronize");
  return result(finish(stream_of(stream)));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  cudaError_t status = expect_not_captured(stream_of(stream));
  if (status == cudaSuccess) status = expect_no_capture();
  if (status != cudaSuccess) return result(status);
  census::note_call("cudaStreamQuery");
  return has_finished(stream_of(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  census::note_call("cudaStreamWaitEvent");
  return result(wait(stream_of(stream), event->signal));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  use_context();
  census::note_call("cudaEventCreateWithFlags");
  return *event = new CUevent_st{current_device, nullptr}, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  use_context();
  census::note_call("cudaEventDestroy");
  return delete event, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  census::note_call("cudaEventRecord");
  const StreamPtr on = stream_of(stream);
  if (on->device != event->device) return result(cudaErrorInvalidResourceHandle);
  return event->signal = record(on), cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  use_context();
  census::note_call("cudaEventSynchronize");
  return result(finish(event->signal));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  use_context();
  if (event->signal && event->signal->capture) return result(finish(event->signal));
  if (const cudaError_t status = expect_no_capture(); status != cudaSuccess) return result(status);
  census::note_call("cudaEventQuery");
  return is_raised(event->signal) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (!from->signal || !to->signal) return result(cudaErrorInvalidResourceHandle);
  if (!from->signal->raised || !to->signal->raised) return result(cudaErrorNotReady);
  *milliseconds =
      std::chrono::duration<float, std::milli>(to->signal->time - from->signal->time).count();
  return cudaSuccess;
}

// ---- kernels

cudaError_t cudaLaunchKernel(const void* address, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t handle) {
  Binder binder = nullptr;
  {
    const std::lock_guard lock(kernels().mutex);
    binder = kernels().known[address];
  }
  if (binder == nullptr) fatal("a kernel was launched without tutti::cuda::launch");
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || blocks == 0 || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535)
    return result(cudaErrorInvalidConfiguration);
  if (shared_bytes > shared_per_block) return result(cudaErrorInvalidValue);
  census::note_launch({.grid = grid, .block = block, .shared_bytes = shared_bytes}, address,
                      arguments);
  const StreamPtr stream = stream_of(handle);
  if (stream->device != current_device) return result(cudaErrorInvalidResourceHandle);
  return result(enqueue(stream, [launch = Launch{.grid = grid,
                                                 .block = block,
                                                 .shared_bytes = shared_bytes,
                                                 .kernel = binder(address, arguments),
                                                 .address = address}] { emulator::run(launch); }));
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return result(begin_capture(stream_of(stream), mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::shared_ptr<Graph> captured;
  const cudaError_t status = end_capture(stream_of(stream), captured);
  *graph = status == cudaSuccess ? new CUgraph_st{captured} : nullptr;
  return result(status);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  use_context();
  return *mode = exchange_capture_mode(*mode), cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_capturing(stream_of(stream)) ? cudaStreamCaptureStatusActive
                                            : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return *executable = new CUgraphExec_st{graph->graph}, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return result(launch(executable->graph, stream_of(stream)));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  return *count = graph->graph->nodes.size(), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return delete executable, cudaSuccess;
}

}  // extern "C"
