#include "memory.h"

#include "cuda/runtime.h"
#include "error.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tutti {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

// Rounds a request up to one of eight sizes per power of two, so that a block fits later requests
// of nearly its size. At most 12.5% is wasted, and a training step finds every block of the step
// before it.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 512) return (bytes + alignment - 1) / alignment * alignment;
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

// A released block of this size or more goes back to the system if the program allocates 16 times
// the memory of all its tensors without using the block again. Otherwise one giant picture would
// keep its memory until the program ends. A training step uses every block again, and allocates the
// memory of its tensors only a few times.
constexpr std::size_t large_block = std::size_t{16} << 20;
constexpr std::size_t idle_allocation_factor = 16;

class CpuAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t size = size_class(bytes);
    {
      const std::lock_guard lock(mutex_);
      allocated_ += size;
      return_idle_blocks();
      auto& blocks = free_[size];
      if (!blocks.empty()) {
        void* block = blocks.back().block;
        blocks.pop_back();
        stats_.cached -= size;
        count_live(size);
        return block;
      }
    }
    void* block = from_system(size);
    if (!block) {  // the cache may hold the memory that the system lacks
      trim();
      block = from_system(size);
    }
    const std::lock_guard lock(mutex_);
    if (!block)
      fail<OutOfMemoryError>(
          "out of memory on cpu: asked for {} bytes while {} bytes are live and {} are cached",
          bytes, stats_.live, stats_.cached);
    if (size >= huge_page) madvise(block, size, MADV_HUGEPAGE);  // only a hint
    ++stats_.system_allocations;
    count_live(size);
    return block;
  }

  void release(void* block, std::size_t bytes) noexcept override {
    const std::size_t size = size_class(bytes);
    const std::lock_guard lock(mutex_);
    stats_.live -= size;
    try {
      free_[size].push_back({block, allocated_});
      stats_.cached += size;
    } catch (...) {
      std::free(block);
    }
  }

  MemoryStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  void trim() override {
    const std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : free_)
      for (const FreeBlock& free : blocks) std::free(free.block);
    free_.clear();
    stats_.cached = 0;
  }

 private:
  struct FreeBlock {
    void* block;
    std::size_t released_at;  // the value of allocated_ at that time
  };

  // Looks at the large blocks each time when as much as all memory was allocated. Blocks of one
  // size stand in the order of their release, and the last one is reused first.
  void return_idle_blocks() {
    const std::size_t all = stats_.live + stats_.cached;
    if (allocated_ - looked_at_ < all) return;
    looked_at_ = allocated_;
    for (auto& [size, blocks] : free_) {
      if (size < large_block) continue;
      const auto idle = [&](const FreeBlock& free) {
        return (allocated_ - free.released_at) / idle_allocation_factor > all;
      };
      const auto end = std::find_if_not(blocks.begin(), blocks.end(), idle);
      for (auto free = blocks.begin(); free != end; ++free) {
        std::free(free->block);
        stats_.cached -= size;
      }
      blocks.erase(blocks.begin(), end);
    }
  }

  static void* from_system(std::size_t size) {
    if (size < huge_page) return std::aligned_alloc(alignment, size);
    return std::aligned_alloc(huge_page, (size + huge_page - 1) / huge_page * huge_page);
  }

  void count_live(std::size_t size) {
    stats_.live += size;
    if (stats_.live > stats_.peak) stats_.peak = stats_.live;
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<FreeBlock>> free_;  // by their size
  std::size_t allocated_ = 0;  // the bytes of all allocations so far
  std::size_t looked_at_ = 0;  // the value of allocated_ when return_idle_blocks() last looked
  MemoryStats stats_;
};

}  // namespace

Allocator& allocator(Device device) {
  // It is never destroyed: tensors of static storage duration may outlive any static allocator.
  static auto* cpu = new CpuAllocator;
  return device.is_cpu() ? static_cast<Allocator&>(*cpu) : cuda::allocator(device.index());
}

Storage::Storage(std::size_t bytes, Device device)
    : data_(bytes ? tutti::allocator(device).allocate(bytes) : nullptr),
      bytes_(bytes),
      device_(device) {}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {
  if (!release_) release_ = [] {};
}

Storage::~Storage() {
  if (release_) release_();
  else if (data_) tutti::allocator(device_).release(data_, bytes_);
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device,
                std::size_t bytes) {
  if (!bytes) return;
  if (to_device.is_cpu() && from_device.is_cpu()) std::memcpy(to, from, bytes);
  else cuda::copy_bytes(to, to_device, from, from_device, bytes);
}

void zero_bytes(void* data, Device device, std::size_t bytes) {
  if (!bytes) return;
  if (device.is_cpu()) std::memset(data, 0, bytes);
  else cuda::zero_bytes(data, device.index(), bytes);
}

}  // namespace tutti
