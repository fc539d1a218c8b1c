// The allocator of a CUDA device. The driver's stream-ordered pool allocates and reuses memory;
// this file counts bytes, remembers which stream a block belongs to, and reports when no memory is
// left. While a thread captures a graph, the graph's arena (arena.h) allocates instead of the pool.
#include "arena.h"
#include "check.h"
#include "runtime.h"
#include "stream.h"

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tutti::cuda {
namespace {

class PoolAllocator final : public Allocator {
 public:
  explicit PoolAllocator(int device) : device_(device) {
    const DeviceScope scope(device);
    check(cudaDeviceGetDefaultMemPool(&pool_, device), "cudaDeviceGetDefaultMemPool", "allocator");
    // Without this setting every synchronisation returns the pool's memory to the system.
    std::uint64_t keep_all = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all),
          "cudaMemPoolSetAttribute", "allocator");
  }

  void* allocate(std::size_t bytes) override {
    const DeviceScope scope(device_);
    const Stream& stream = current_stream(device_);
    const std::shared_ptr<Arena>& arena = Arena::current(device_);
    void* block = arena ? arena->allocate(bytes, stream) : from_pool(bytes, stream);
    if (!block) refuse(bytes);
    const std::lock_guard lock(mutex_);
    owners_.emplace(block, Owner{stream, arena});
    live_ += bytes;
    if (live_ > peak_) peak_ = live_;
    return block;
  }

  void release(void* block, std::size_t bytes) noexcept override {
    try {
      const Owner owner = forget(block, bytes);
      if (Arena::current(device_)) release_during_capture(block, owner);
      else if (owner.arena) owner.arena->record_use(current_stream(device_));
      else cudaFreeAsync(block, owner.stream.get());
    } catch (const std::exception&) {
      // At the end of the program CUDA may be gone already, and its memory with it.
    }
  }

  MemoryStats stats() const override {
    const std::uint64_t reserved = attribute(cudaMemPoolAttrReservedMemCurrent);
    const std::lock_guard lock(mutex_);
    if (reserved > reserved_) ++growths_;
    reserved_ = reserved;
    return {.live = live_,
            .cached = reserved > live_ ? reserved - live_ : 0,
            .peak = peak_,
            .system_allocations = growths_};
  }

  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
  }

  void trim() override {
    synchronize(device_);  // memory that a stream has yet to free cannot be trimmed
    check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo", "trim");
  }

 private:
  struct Owner {
    Stream stream;
    std::shared_ptr<Arena> arena;  // null for a block of the pool
  };

  // A block from outside the capture stays in use until the captured graph is gone.
  void release_during_capture(void* block, const Owner& owner) {
    const std::shared_ptr<Arena>& capture = Arena::current(device_);
    if (owner.arena == capture) return capture->release(block, owner.stream);
    capture->when_graph_is_gone([=](const Stream& last) {
      if (owner.arena) return owner.arena->record_use(last);
      owner.stream.wait(last);
      cudaFreeAsync(block, owner.stream.get());
    });
  }

  Owner forget(void* block, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(block);
    const Owner owner = found->second;
    owners_.erase(found);
    live_ -= bytes;
    return owner;
  }

  void* from_pool(std::size_t bytes, const Stream& stream) {
    void* block = nullptr;
    cudaError_t status = cudaMallocAsync(&block, bytes, stream.get());
    // The pool may hold memory in pieces that are too small.
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      trim();
      status = cudaMallocAsync(&block, bytes, stream.get());
    }
    if (status == cudaErrorMemoryAllocation) return nullptr;
    check(status, "cudaMallocAsync", "allocate");
    return block;
  }

  std::uint64_t attribute(cudaMemPoolAttr which) const {
    std::uint64_t value = 0;
    check(cudaMemPoolGetAttribute(pool_, which, &value), "cudaMemPoolGetAttribute", "allocator");
    return value;
  }

  [[noreturn]] void refuse(std::size_t bytes) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", "allocate");
    const std::lock_guard lock(mutex_);
    fail<DeviceError>(
        "out of memory on cuda:{}: asked for {} bytes while {} bytes are live and {} of {} are "
        "free",
        device_, bytes, live_, free, total);
  }

  const int device_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  std::unordered_map<void*, Owner> owners_;
  std::size_t live_ = 0, peak_ = 0;
  // What stats() last saw of the pool, and how often it found more than before, which is what
  // MemoryStats::system_allocations counts here. No allocation asks the driver.
  mutable std::uint64_t reserved_ = 0;
  mutable std::size_t growths_ = 0;
};

}  // namespace

Allocator& allocator(int device) {
  const DeviceScope scope(device);  // checks the index
  static auto* mutex = new std::mutex;
  static auto* allocators =
      new std::deque<std::unique_ptr<PoolAllocator>>(static_cast<std::size_t>(device_count()));
  const std::lock_guard lock(*mutex);
  auto& own = (*allocators)[static_cast<std::size_t>(device)];
  if (!own) own = std::make_unique<PoolAllocator>(device);
  return *own;
}

}  // namespace tutti::cuda
