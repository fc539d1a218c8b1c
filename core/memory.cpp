#include "memory.h"

#include "cuda/graph.h"
#include "cuda/runtime.h"
#include "error.h"
#include "page_heap.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace tutti {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t large_block = std::size_t{1} << 20;

// Rounds the size of a small block up to one of eight sizes per power of two, so that a block fits
// later requests of nearly its size. At most 12.5% is wasted.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 512) return (bytes + alignment - 1) / alignment * alignment;
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

// Keeps released small blocks by their sizes, and large ones in a PageHeap, in which one block's
// memory serves blocks of other sizes.
class CpuAllocator final : public Allocator {
 public:
  static CpuAllocator& instance() {
    // It is never destroyed: tensors of static storage duration may outlive any static allocator.
    static auto* const cpu = new CpuAllocator;
    return *cpu;
  }

  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    void* block = find_block(bytes);
    if (!block) {  // the cache may hold the memory that the system lacks
      drop_cache();
      block = find_block(bytes);
    }
    if (!block)
      fail<OutOfMemoryError>(
          "out of memory on cpu: asked for {} bytes while {} bytes are live and {} are cached",
          bytes, live_, cached());
    const std::size_t size = size_of(block, bytes);
    live_ += size;
    peak_ = std::max(peak_, live_);
    if (bytes >= large_block) {
      large_live_ += size;
      allocated_ += size;
      return_idle_memory();
    }
    return block;
  }

  void release(void* block, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::size_t size = size_of(block, bytes);
    live_ -= size;
    if (bytes >= large_block) {
      large_live_ -= size;
      return large_.release(block);
    }
    try {
      small_[size].push_back(block);
      small_bytes_ += size;
    } catch (...) {
      std::free(block);
    }
  }

  MemoryStats stats() const override {
    const std::lock_guard lock(mutex_);
    return {.live = live_,
            .cached = cached(),
            .peak = peak_,
            .system_allocations = small_allocations_ + large_.mappings()};
  }

  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
  }

  void trim() override {
    const std::lock_guard lock(mutex_);
    drop_cache();
  }

 private:
  // In the child of a fork no other thread unlocks the mutex, so the fork waits for it.
  CpuAllocator() {
    const auto unlock = [] { instance().mutex_.unlock(); };
    pthread_atfork([] { instance().mutex_.lock(); }, unlock, unlock);
  }

  // Returns null where neither the cache nor the system has such a block.
  void* find_block(std::size_t bytes) {
    try {
      return bytes >= large_block ? large_.allocate(bytes) : find_small(size_class(bytes));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  void* find_small(std::size_t size) {
    auto& blocks = small_[size];
    if (blocks.empty()) {
      void* const block = std::aligned_alloc(alignment, size);
      if (block) ++small_allocations_;
      return block;
    }
    void* const block = blocks.back();
    blocks.pop_back();
    small_bytes_ -= size;
    return block;
  }

  std::size_t size_of(void* block, std::size_t bytes) const {
    return bytes >= large_block ? large_.size_of(block) : size_class(bytes);
  }

  std::size_t cached() const { return small_bytes_ + large_.free_bytes(); }

  void drop_cache() {
    for (auto& [size, blocks] : small_)
      for (void* block : blocks) std::free(block);
    small_.clear();
    small_bytes_ = 0;
    large_.return_to_system(large_.free_bytes());
  }

  // Returns memory of large blocks to the system that was not needed while tensors allocated 16
  // times all of it, so that one giant picture does not keep its memory until the program ends. A
  // training step allocates its memory only a few times. Half as much as tensors needed at most is
  // left for the gaps between blocks.
  void return_idle_memory() {
    recent_peak_ = std::max(recent_peak_, large_live_);
    const std::size_t all = large_live_ + large_.free_bytes();
    if ((allocated_ - looked_at_) / 16 < all) return;
    const std::size_t needed = recent_peak_ + recent_peak_ / 2;
    if (all > needed) large_.return_to_system(all - needed);
    looked_at_ = allocated_;
    recent_peak_ = large_live_;
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> small_;  // by their size
  PageHeap large_;
  std::size_t small_bytes_ = 0, small_allocations_ = 0;
  std::size_t live_ = 0, peak_ = 0;
  std::size_t large_live_ = 0;   // the part of live_ in large blocks
  std::size_t allocated_ = 0;    // the bytes of all large blocks so far
  std::size_t looked_at_ = 0;    // the value of allocated_ at the last look for idle memory
  std::size_t recent_peak_ = 0;  // the highest large_live_ since then
};

}  // namespace

Allocator& allocator(Device device) {
  return device.is_cpu() ? CpuAllocator::instance() : cuda::allocator(device.index());
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

void count_change(const std::shared_ptr<Storage>& storage) {
  storage->bump_version();
  if (!storage->device().is_cuda()) return;
  // A graph that owned the storage would keep its memory from other tensors of the capture.
  cuda::call_before_replay(storage->device(), [changed = std::weak_ptr(storage)] {
    if (const auto alive = changed.lock()) alive->bump_version();
  });
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
