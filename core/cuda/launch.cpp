#include "launch.h"

#include "stream.h"

namespace tutti::cuda {

void enqueue(const char* op, const void* kernel, const Grid& grid, void** arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  const cudaError_t status = cudaLaunchKernel(kernel, grid.blocks, grid.threads, arguments,
                                              grid.shared_bytes, current_stream().get());
  if (status == cudaSuccess) return;
  const std::string where =
      fmt::format("{} (grid {} x {} x {}, block {} x {} x {}, {} bytes of shared memory)", op,
                  grid.blocks.x, grid.blocks.y, grid.blocks.z, grid.threads.x, grid.threads.y,
                  grid.threads.z, grid.shared_bytes);
  check(status, "cudaLaunchKernel", where.c_str());
}

}  // namespace tutti::cuda
