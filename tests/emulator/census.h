// A census counts what a program asks of a CUDA device, while no kernel runs: launches with their
// grids and arguments, library calls, collectives, copies, events and allocations. Device memory is
// addresses only, so a step of any size can be counted on a small machine. The emulated devices
// have the properties of a real one, by which the library chooses grids and algorithms.
//
// In a census no work runs, every event has passed when it is recorded, and a copy to the host
// gives zeros.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulator::census {

/// The published properties of a GPU.
struct DeviceModel {
  const char* name;
  int compute_major;
  int multiprocessors;
  int l2_bytes;
  std::size_t memory_bytes;
  double bytes_per_second;  ///< of the device's memory
  double flops_per_second;  ///< of matrix products of bfloat16 without sparsity
};

/// NVIDIA's data sheets of the H100 SXM5 and of the A100 SXM4 with 80 GB.
inline constexpr DeviceModel h100{"H100", 9, 132, 50 << 20, 80'000'000'000, 3.35e12, 989e12};
inline constexpr DeviceModel a100{"A100", 8, 108, 40 << 20, 80'000'000'000, 2.039e12, 312e12};

/// Makes the process count instead of run, for good. To be called before the first CUDA call.
void begin(const DeviceModel& device);
/// Returns the device of the census; null in a process that runs kernels.
const DeviceModel* device();

enum class Kind {
  kernel,       ///< a kernel of the library
  convolution,  ///< a call of cuDNN
  product,      ///< a call of cuBLASLt
  copy,         ///< between device and host, or on the device
  fill,         ///< cudaMemsetAsync
  collective,   ///< a call of NCCL
  runtime       ///< any other call of the CUDA runtime
};

struct Call {
  Kind kind = Kind::runtime;
  std::string name = {};  ///< the kernel as its signature, or the function
  dim3 grid = 0, block = 0;
  std::size_t shared_bytes = 0;
  double bytes = 0;  ///< read and written in device memory; of a collective, those of its input
  double flops = 0;
  std::vector<std::string> spans = {};  ///< names of the trace's spans around it, outermost first
};

/// Adds the call to the calling thread's recording, if there is one.
void note(Call call);
/// Adds a call of the CUDA runtime. Returns whether this process only counts.
bool note_call(const char* function, double bytes = 0);
/// Adds the launch of a kernel at `address`, with addresses of its arguments up to a null.
void note_launch(Call launch, const void* address, void** arguments);
/// Adds a copy, and does what a census does of it (see above).
void note_copy(void* to, std::size_t bytes, cudaMemcpyKind kind);
/// Fills in `bytes`, which follow from a kernel's arguments. `name` is set.
using ReadArguments = void (*)(Call& launch, void** arguments);
/// Records what the calling thread does.
void start_recording(ReadArguments read);
std::vector<Call> stop_recording();

/// The trace's spans of the calling thread.
void push_span(const char* name);
void pop_span();

/// A block of device memory of a census begins or ends.
void add_block(std::size_t bytes, int device);
void end_block(std::size_t bytes, int device);
/// Returns the most bytes that a device has held at a time in blocks of 1 MB and more. Smaller ones
/// may live longer or shorter, as the threads of the library happen to run.
std::size_t peak_bytes(int device);
/// Makes peak_bytes() begin anew.
void reset_peak_bytes(int device);

}  // namespace emulator::census
