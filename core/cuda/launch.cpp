#include "launch.h"

#include "stream.h"

#include <map>
#include <mutex>
#include <utility>

namespace tutti::cuda {
namespace {

// A kernel gets this much dynamic shared memory without a call of cudaFuncSetAttribute.
constexpr std::size_t default_shared_bytes = 48 << 10;

struct KernelOnDevice {
  std::size_t shared_bytes = default_shared_bytes;         // the limit that was set
  std::map<std::pair<int, std::size_t>, int> blocks = {};  // by threads and shared memory
};

struct Kernels {
  std::mutex mutex;
  std::map<std::pair<const void*, int>, KernelOnDevice> on_device;
};

Kernels& kernels() {
  static auto* kernels = new Kernels;  // never destroyed: tensors of static duration use kernels
  return *kernels;
}

// Raises the limit of a kernel's dynamic shared memory, which belongs to the kernel and not to the
// launch. It is never lowered: another thread, or a captured graph, may hold a larger launch.
void allow_shared_bytes(const char* op, const void* kernel, std::size_t bytes,
                        KernelOnDevice& known) {
  if (bytes <= known.shared_bytes) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute", op);
  known.shared_bytes = bytes;
}

void allow_shared_bytes(const char* op, const void* kernel, std::size_t bytes) {
  if (bytes <= default_shared_bytes) return;
  const std::lock_guard lock(kernels().mutex);
  allow_shared_bytes(op, kernel, bytes, kernels().on_device[{kernel, current_stream().device()}]);
}

}  // namespace

int blocks_per_multiprocessor(const char* op, const void* kernel, int threads,
                              std::size_t shared_bytes) {
  const std::lock_guard lock(kernels().mutex);
  KernelOnDevice& known = kernels().on_device[{kernel, current_stream().device()}];
  const auto [answer, is_new] = known.blocks.try_emplace({threads, shared_bytes}, 0);
  if (!is_new) return answer->second;
  try {
    allow_shared_bytes(op, kernel, shared_bytes, known);
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&answer->second, kernel, threads,
                                                        shared_bytes),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor", op);
  } catch (...) {
    known.blocks.erase(answer);
    throw;
  }
  return answer->second;
}

void enqueue(const char* op, const void* kernel, const Grid& grid, void** arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  const cudaStream_t stream = current_stream().get();
  allow_shared_bytes(op, kernel, grid.shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = grid.cooperative ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelExC(&config, kernel, arguments);
  if (status == cudaSuccess) return;
  const std::string where =
      fmt::format("{} (grid {} x {} x {}, block {} x {} x {}, {} bytes of shared memory{})", op,
                  grid.blocks.x, grid.blocks.y, grid.blocks.z, grid.threads.x, grid.threads.y,
                  grid.threads.z, grid.shared_bytes, grid.cooperative ? ", cooperative" : "");
  check(status, "cudaLaunchKernelExC", where.c_str());
}

}  // namespace tutti::cuda
