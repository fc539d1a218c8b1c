#include "pinned_buffer.h"

#include "check.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::cuda {
namespace {

struct ReturnedBlock {
  void* block;
  StreamUses uses;
};

// The pool allocates no further block beyond this size while one of the right size is still in use
// by the device: the caller then waits for the oldest one.
constexpr std::size_t max_pool_bytes = std::size_t{256} << 20;

struct Pool {
  std::mutex mutex;
  // The key is the size; blocks of one size stand in the order in which they were returned.
  std::map<std::size_t, std::vector<ReturnedBlock>> blocks;
  std::size_t bytes = 0;
};

Pool& pool() {
  static auto* pool = new Pool;  // never destroyed, like the streams that use it
  return *pool;
}

std::size_t size_class(std::size_t bytes) {
  return std::bit_ceil(std::max<std::size_t>(bytes, 4096));
}

void* take(std::size_t size) {
  std::optional<StreamUses> oldest;
  {
    const std::lock_guard lock(pool().mutex);
    auto& blocks = pool().blocks[size];
    const auto idle = std::find_if(blocks.begin(), blocks.end(),
                                   [](const ReturnedBlock& r) { return r.uses.passed(); });
    if (idle != blocks.end()) {
      void* block = idle->block;
      blocks.erase(idle);
      pool().bytes -= size;
      return block;
    }
    if (pool().bytes + size > max_pool_bytes && !blocks.empty()) oldest = blocks.front().uses;
  }
  if (oldest) {
    oldest->synchronize("PinnedBuffer");
    return take(size);
  }
  void* block = nullptr;
  check(cudaHostAlloc(&block, size, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc",
        "PinnedBuffer");
  return block;
}

}  // namespace

void StreamUses::record(const Stream& stream) {
  const auto same = [&](const auto& use) { return use.first == stream; };
  auto use = std::ranges::find_if(events_, same);
  if (use == events_.end()) {
    std::erase_if(events_, [](const auto& other) { return other.second.passed(); });
    use = events_.insert(events_.end(), {stream, Event()});
  }
  use->second.record(stream);
}

bool StreamUses::passed() const {
  return std::ranges::all_of(events_, [](const auto& use) { return use.second.passed(); });
}

void StreamUses::synchronize(const char* op) const {
  for (const auto& [stream, event] : events_) event.synchronize(op);
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : bytes_(bytes), data_(take(size_class(bytes))) {}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : bytes_(other.bytes_),
      data_(std::exchange(other.data_, nullptr)),
      uses_(std::move(other.uses_)) {}

PinnedBuffer::~PinnedBuffer() {
  if (!data_) return;
  const std::size_t size = size_class(bytes_);
  const std::lock_guard lock(pool().mutex);
  pool().blocks[size].push_back({data_, std::move(uses_)});
  pool().bytes += size;
}

}  // namespace tutti::cuda
