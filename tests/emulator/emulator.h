// The CUDA emulator runs this project's kernels (kernels/cuda/*.cu, unchanged) and its CUDA host
// code (core/cuda) on the CPU, so that the GPU tests run where there is no GPU. Each CUDA thread is
// a fiber that yields only at barriers, at shuffles and at its end. Blocks run one after another.
//
// The emulator finds: wrong indices, tails, reductions and host logic; a barrier or shuffle that
// not all threads reach; shared or device memory that is read before it is written (both are filled
// with NaN); a missing __syncthreads (threads and blocks run in a random order between barriers);
// writes past the end of an allocation; host code that reads device memory; a missing order between
// streams, between host and device, or between the nodes of a graph; calls that a capture refuses;
// a vector at an address that is not a multiple of its size. With kernels that are compiled for it,
// race_detector.h also finds races of threads and blocks. It cannot find: slow code, too many
// registers, and anything about the real cuBLASLt, cuDNN and NCCL.
//
// The environment variable TUTTI_EMULATOR_SEED (default 1) seeds the random orders. On the device
// whose number TUTTI_EMULATOR_NO_PRIORITY is, no stream of a high priority can be made.
// TUTTI_EMULATOR_DRIVER=12040 is a driver that supports CUDA 12.4 at most. The
// emulator prints every mistake that it finds and aborts the process.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <source_location>
#include <string>
#include <vector>

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace emulator {

using Location = std::source_location;

/// Prints `what` and aborts the process.
[[noreturn]] void fatal(const std::string& what);

/// A small and fast random generator. Its numbers depend on the seed and on `stream` only.
class Random {
 public:
  explicit Random(std::uint64_t stream);
  std::uint64_t below(std::uint64_t bound);

 private:
  std::uint64_t state_;
};

// ---- blocks.cpp runs one kernel

struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  std::function<void()> kernel;   ///< runs in every thread
  const void* address = nullptr;  ///< of the kernel's code, for reports
};
/// Runs all threads of all blocks to their end.
void run(const Launch& launch);

/// Holds what the running CUDA thread needs besides CUDA's built-in variables.
struct ThreadContext {
  int lane = 0;
  unsigned char* shared = nullptr;  ///< the block's dynamic shared memory
};
extern constinit thread_local ThreadContext current_thread;

void block_barrier(Location at);
/// Waits for the other lanes of the warp. `mask` must be that of a full warp.
void warp_barrier(std::uint32_t mask, Location at);
/// Orders the thread's accesses to memory, for threads of all blocks.
void fence(Location at);

/// The values that the lanes of a warp passed to warp_exchange, `stride` bytes apart.
struct WarpValues {
  static constexpr std::size_t stride = 16;
  const unsigned char* slots;
  std::uint32_t lanes;  ///< bit i is set if lane i exists
};
/// Passes a value to the warp and waits until its other lanes have done so too. `mask` must be that
/// of a full warp.
WarpValues warp_exchange(std::uint32_t mask, const void* value, std::size_t bytes, Location at);

// ---- shared_memory.cpp, linked into each library of kernels

struct Region {
  unsigned char* data;
  std::size_t bytes;
};
/// One function for each library of kernels, which returns where the `__shared__` variables of that
/// library are in the calling thread.
std::vector<Region (*)()>& shared_regions();
/// What these functions return in the calling thread.
const std::vector<Region>& static_shared();

// ---- memory.cpp: device memory

constexpr std::size_t device_memory = std::size_t{1} << 30;  ///< bytes of each device
/// Returns the bytes of each device: device_memory, or that of a census's device (census.h).
std::size_t memory_bytes();

/// Allocates device memory with guards at both ends; returns null if the device has no room.
void* allocate(std::size_t bytes, int device);
/// Fills an allocation with NaN.
void poison(void* block);
/// Frees an allocation: checks its guards, then fills it with NaN.
void release(void* block);
struct Usage {
  std::size_t live, peak;
};
Usage usage(int device);
void reset_peak(int device);
/// All addresses of device memory.
Region device_addresses();
/// The device of an address in device memory; -1 for any other.
int device_of(const void* address);
/// The bytes from an address to the end of its allocation; 0 if it lies in none.
std::size_t bytes_from(const void* address);
/// Aborts, naming `call`, unless all of [address, address + bytes) lies in one live allocation.
void expect_allocated(const void* address, std::size_t bytes, const char* call);

/// Makes device memory accessible while an object lives. At other times an access faults, because
/// host code must not read or write device memory.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// ---- runtime.cpp

/// Returns the devices whose contexts each thread has used so far, in the order of the threads'
/// first uses.
std::vector<std::set<int>> contexts();

/// What each cudaHostAlloc calls first with its bytes, if it is not empty.
std::function<void(std::size_t)>& on_host_alloc();

// ---- fake_nccl.cpp

/// Returns the most channels that each communicator so far may have, as it was configured.
std::vector<int> nccl_channels();

// ---- streams.cpp runs what is enqueued

/// Runs `work` in the stream's order, at a random later time.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Copies a kernel's arguments from their addresses and returns a function that calls the kernel.
using Binder = std::function<void()> (*)(const void* kernel, void** arguments);
void register_kernel(const void* kernel, Binder binder);

}  // namespace emulator
