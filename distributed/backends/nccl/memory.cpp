#include "memory.h"

#include "../../../core/cuda/arena.h"
#include "../../../core/fork.h"
#include "nccl.h"

#include <algorithm>

namespace tutti::distributed::nccl {
namespace {

struct Block {
  std::shared_ptr<RegisteredGroup> group;
  void* data = nullptr;
  std::size_t bytes = 0;
  void* registration = nullptr;  // null where NCCL has refused to register it
  cuda::Stream stream;  // the block may be freed after the work of this stream, its maker's
  cuda::Event unused{};
};

struct Released {
  std::mutex mutex;
  std::vector<Block> blocks;
  std::atomic<std::size_t> count = 0;  // of `blocks`, to be read without the lock
};
Released& released() {
  static auto* all = new Released;
  return *all;
}

std::atomic<std::size_t> all_bytes = 0;

// May run on any thread: on a watcher that drops a collective, or when the program ends.
void release(Block& block) noexcept {
  try {
    if (const auto& graph = cuda::Arena::current(block.stream.device())) {
      // Released during a capture: the graph uses it.
      return graph->when_graph_is_gone(
          [held = std::make_shared<Block>(std::move(block))](const cuda::Stream& last) {
            held->stream.wait(last);
            release(*held);
          });
    }
    block.unused.record(block.stream);
    const std::lock_guard lock(released().mutex);
    released().blocks.push_back(std::move(block));
    ++released().count;
  } catch (const std::exception&) {
    // At the end of the program CUDA may be gone already, and its memory with it.
  }
}

bool try_free(Block& block) {
  if (!block.unused.passed() || !block.group->communicator.deregister(block.registration))
    return false;
  block.registration = nullptr;
  if (ncclMemFree(block.data) == ncclSuccess) all_bytes -= block.bytes;
  return true;
}

}  // namespace

std::size_t registered_bytes() { return all_bytes; }

Tensor registered_empty(const std::shared_ptr<RegisteredGroup>& group, const Shape& shape,
                        TensorOptions options) {
  const int device = options.device.index();
  const cuda::DeviceScope scope(device);
  const cuda::Stream& stream = cuda::current_stream(device);
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(options.dtype);
  void* data = nullptr;
  if (bytes == 0 || stream.is_capturing()) return empty(shape, options);
  free_released(device);
  if (ncclMemAlloc(&data, bytes) != ncclSuccess || !data) {
    cudaGetLastError();
    return empty(shape, options);
  }
  all_bytes += bytes;
  const auto block = std::make_shared<Block>(
      Block{group, data, bytes, group->communicator.register_memory(data, bytes), stream});
  return from_blob(
      data, shape, options.dtype,
      [block, process = ProcessMark()] {
        if (!process.is_of_parent()) release(*block);
      },
      options.device);
}

void free_released(int device) {
  Released& all = released();
  if (all.count == 0) return;
  std::vector<Block> mine;
  {
    const std::lock_guard lock(all.mutex);
    const auto others =
        std::partition(all.blocks.begin(), all.blocks.end(),
                       [&](const Block& block) { return block.stream.device() != device; });
    mine.assign(std::make_move_iterator(others), std::make_move_iterator(all.blocks.end()));
    all.blocks.erase(others, all.blocks.end());
  }
  const cuda::DeviceScope scope(device);
  const std::size_t before = mine.size();
  std::erase_if(mine, try_free);
  const std::lock_guard lock(all.mutex);
  all.count -= before - mine.size();
  std::move(mine.begin(), mine.end(), std::back_inserter(all.blocks));
}

}  // namespace tutti::distributed::nccl
