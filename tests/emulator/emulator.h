// The CUDA emulator: runs this project's kernels (kernels/cuda/*.cu, unchanged) and its CUDA host
// code (core/cuda) on the CPU, so that the GPU tests run where there is no GPU. Each CUDA thread is
// a fiber that gives way at barriers, shuffles and at its end only; blocks run one after another,
// those of a cooperative launch side by side.
//
// What it finds: wrong indices, tails, reductions and host logic; a barrier or shuffle that not all
// threads reach; static or dynamic shared memory and device memory read before it is written (both
// are filled with NaN); a missing __syncthreads (threads and blocks run in a random order between
// barriers); writes past the end of an allocation; host code that reads device memory; work on
// different streams, or of host and device, that nothing orders. What it says nothing about: speed,
// and races that need two threads within one stretch between barriers, memory ordering between
// blocks, alignment beyond what the CPU needs, registers and occupancy, the libraries (cuBLASLt,
// cuDNN, NCCL).
//
// Seeded by TUTTI_EMULATOR_SEED (default 1). Every finding prints what happened and aborts, as it
// would stop a GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace emulator {

using Site = std::source_location;

[[noreturn]] void fatal(const std::string& what);

/// Small and fast; the n-th of a seed is the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t stream);
  std::uint64_t below(std::uint64_t bound);

 private:
  std::uint64_t state_;
};

// ---- blocks.cpp: one kernel

struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  bool cooperative = false;
  std::function<void()> kernel;  ///< what every thread runs
};
/// Runs all threads of all blocks to their end.
void run(const Launch& launch);

/// What the running CUDA thread knows of itself, beside CUDA's own built-in variables.
struct Place {
  int lane = 0;
  unsigned char* shared = nullptr;  ///< the block's dynamic shared memory
};
extern constinit thread_local Place here;

void block_barrier(Site at);
void grid_barrier(Site at);

/// What the lanes of a warp handed in, `stride` bytes apart.
struct Deposits {
  static constexpr std::size_t stride = 16;
  const unsigned char* slots;
  std::uint32_t lanes;  ///< bit i: lane i exists
};
/// Hands in a value and waits for the warp's other lanes to do so. `mask` must be that of a full
/// warp.
Deposits warp_exchange(std::uint32_t mask, const void* value, std::size_t bytes, Site at);

// ---- shared_memory.cpp, linked into each library of kernels

struct Region {
  unsigned char* data;
  std::size_t bytes;
};
/// The calling thread's `__shared__` variables of every library of kernels.
std::vector<Region (*)()>& shared_regions();

// ---- memory.cpp: device memory

constexpr std::size_t device_memory = std::size_t{1} << 30;  ///< what each device claims to have

/// Guarded at both ends; null where there is no room.
void* allocate(std::size_t bytes, int device);
/// Fills with NaN.
void poison(void* block);
/// Checks the guards, fills with NaN and gives back.
void release(void* block);
struct Usage {
  std::size_t live, peak;
};
Usage usage(int device);
void reset_peak(int device);
/// The device of an address in device memory; -1 for any other.
int device_of(const void* address);
/// Unless all of [address, address + bytes) lies in one live allocation, says what `call` did
/// wrong.
void expect_allocated(const void* address, std::size_t bytes, const char* call);

/// Device memory can be touched while one lives, and faults otherwise: host code must not look into
/// it.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// ---- streams.cpp: what is enqueued

/// Runs `work` in the stream's order, at a time of the emulator's choice.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// How a kernel is called from the addresses of its arguments: copies them and returns what a
/// thread runs.
using Binder = std::function<void()> (*)(const void* kernel, void** arguments);
void register_kernel(const void* kernel, Binder binder);

}  // namespace emulator
