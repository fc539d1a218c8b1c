#include "arena.h"

#include "../thread_owned.h"
#include "check.h"

namespace tutti::cuda {
namespace {

// Lets the calling thread allocate during its capture, which CUDA would refuse otherwise. This is
// safe because the memory comes from a stream that is not captured.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCaptureMode() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

Arena::Arena(int device) : memory_(Stream::create(device)) {}

Arena::~Arena() {
  for (const auto& [block, size] : sizes_) cudaFreeAsync(block, memory_.get());
}

void Arena::graph_is_gone() noexcept {
  for (const auto& callback : std::exchange(callbacks_, {})) {
    try {
      callback(memory_);
    } catch (const std::exception&) {  // CUDA may be gone already when the program ends
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
  return allocate_unshared(size);
}

void* Arena::allocate_unshared(std::size_t bytes) {
  const RelaxedCaptureMode relaxed;
  void* block = nullptr;
  const cudaError_t status = cudaMallocAsync(&block, bytes, memory_.get());
  if (status == cudaErrorMemoryAllocation) return nullptr;
  check(status, "cudaMallocAsync", "cuda::Graph");
  sizes_.emplace(block, bytes);
  return block;
}

void Arena::release(void* block, const Stream& stream) {
  free_[stream.get()].emplace(sizes_.at(block), block);
}

std::shared_ptr<Arena>& Arena::of_thread() { return detail::of_thread<std::shared_ptr<Arena>>(); }

const std::shared_ptr<Arena>& Arena::current(int device) {
  static const auto& none = *new std::shared_ptr<Arena>;  // threads may outlive static objects
  return of_thread() && of_thread()->device() == device ? of_thread() : none;
}

}  // namespace tutti::cuda
