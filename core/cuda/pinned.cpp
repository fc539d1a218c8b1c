#include "pinned.h"

#include "check.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::cuda {
namespace {

struct Returned {
  void* block;
  Event last_use;
};

// How much may wait in the pool for the device to finish with it, before who asks for more waits
// too.
constexpr std::size_t most_waiting = std::size_t{256} << 20;

struct Pool {
  std::mutex mutex;
  std::map<std::size_t, std::vector<Returned>> blocks;  // by size, in the order of their return
  std::size_t bytes = 0;                                // of all of them
};

Pool& pool() {
  static auto* pool = new Pool;  // never destroyed, as the streams that use it
  return *pool;
}

std::size_t size_class(std::size_t bytes) {
  return std::bit_ceil(std::max<std::size_t>(bytes, 4096));
}

void* take(std::size_t size) {
  Event oldest;
  {
    const std::lock_guard lock(pool().mutex);
    auto& blocks = pool().blocks[size];
    const auto idle = std::find_if(blocks.begin(), blocks.end(),
                                   [](const Returned& r) { return r.last_use.passed(); });
    if (idle != blocks.end()) {
      void* block = idle->block;
      blocks.erase(idle);
      pool().bytes -= size;
      return block;
    }
    if (pool().bytes + size > most_waiting && !blocks.empty()) oldest = blocks.front().last_use;
  }
  if (oldest.recorded()) {
    oldest.synchronize("Pinned");
    return take(size);
  }
  void* block = nullptr;
  check(cudaHostAlloc(&block, size, cudaHostAllocPortable), "cudaHostAlloc", "Pinned");
  return block;
}

}  // namespace

Pinned::Pinned(std::size_t bytes) : bytes_(bytes), data_(take(size_class(bytes))) {}

Pinned::Pinned(Pinned&& other) noexcept
    : bytes_(other.bytes_),
      data_(std::exchange(other.data_, nullptr)),
      last_use_(std::move(other.last_use_)) {}

Pinned::~Pinned() {
  if (!data_) return;
  const std::size_t size = size_class(bytes_);
  const std::lock_guard lock(pool().mutex);
  pool().blocks[size].push_back({data_, std::move(last_use_)});
  pool().bytes += size;
}

}  // namespace tutti::cuda
