#include "arena.h"

#include "check.h"

namespace tutti::cuda {
namespace {

std::shared_ptr<Arena>& slot() {
  thread_local std::shared_ptr<Arena> arena;
  return arena;
}

// Allocating beside a capture is safe here: the memory comes from a stream that is not captured.
class Relaxed {
 public:
  Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

Arena::Arena(int device) : memory_(Stream::create(device)) {}

Arena::~Arena() {
  for (const auto& [block, size] : sizes_) cudaFreeAsync(block, memory_.get());
}

void Arena::end() noexcept {
  for (const auto& let_go : std::exchange(at_end_, {})) {
    try {
      let_go(memory_);
    } catch (const std::exception&) {  // when the program ends CUDA may be gone already
    }
  }
}

void* Arena::allocate(std::size_t bytes, const Stream& stream) {
  constexpr std::size_t granularity = 512;
  const std::size_t size = (bytes + granularity - 1) / granularity * granularity;
  auto& free = free_[stream.get()];
  const auto fits = free.lower_bound(size);
  if (fits != free.end() && fits->first <= size + size / 8 + 4096) {
    void* block = fits->second;
    free.erase(fits);
    return block;
  }
  return apart(size);
}

void* Arena::apart(std::size_t bytes) {
  const Relaxed relaxed;
  void* block = nullptr;
  const cudaError_t status = cudaMallocAsync(&block, bytes, memory_.get());
  if (status == cudaErrorMemoryAllocation) return nullptr;
  check(status, "cudaMallocAsync", "cuda::Graph");
  sizes_.emplace(block, bytes);
  return block;
}

void Arena::reuse(void* block, const Stream& stream) {
  free_[stream.get()].emplace(sizes_.at(block), block);
}

const std::shared_ptr<Arena>& Arena::current(int device) {
  static const std::shared_ptr<Arena> none;
  return slot() && slot()->device() == device ? slot() : none;
}

ArenaScope::ArenaScope(std::shared_ptr<Arena> arena) { slot() = std::move(arena); }
ArenaScope::~ArenaScope() { slot() = nullptr; }

}  // namespace tutti::cuda
