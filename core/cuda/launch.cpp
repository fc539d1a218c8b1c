#include "launch.h"

#include "stream.h"

#include <mutex>

namespace tutti::cuda {
namespace {

// A kernel gets this much dynamic shared memory without a call of cudaFuncSetAttribute.
constexpr std::size_t default_shared_bytes = 48 << 10;

// Raises the limit of a kernel's dynamic shared memory. The limit belongs to the kernel and not to
// the launch, so the returned lock keeps other threads from lowering it before the launch.
std::unique_lock<std::mutex> allow_shared_bytes(const char* op, const void* kernel,
                                                std::size_t bytes) {
  static auto* mutex = new std::mutex;
  if (bytes <= default_shared_bytes) return {};
  std::unique_lock lock(*mutex);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute", op);
  return lock;
}

}  // namespace

void enqueue(const char* op, const void* kernel, const Grid& grid, void** arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  const cudaStream_t stream = current_stream().get();
  const auto allowed = allow_shared_bytes(op, kernel, grid.shared_bytes);
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
