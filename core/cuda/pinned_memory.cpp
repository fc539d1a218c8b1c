#include "pinned_memory.h"

#include "check.h"
#include "runtime.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace tutti::cuda {
namespace {

struct ReturnedBlock {
  void* block;
  StreamUses uses;
};

// The pool allocates no further block of a size while so many bytes in such blocks, and four
// blocks, are still in use by the device: the caller then waits for the oldest one.
constexpr std::size_t most_bytes = std::size_t{256} << 20;
constexpr std::size_t huge_page = std::size_t{2} << 20;

struct Pool {
  std::mutex mutex;
  // The key is the size; blocks of one size stand in the order in which they were returned.
  std::map<std::size_t, std::vector<ReturnedBlock>> blocks;
};

Pool& pool() {
  static auto* pool = new Pool;  // never destroyed, like the streams that use it
  return *pool;
}

std::size_t size_class(std::size_t bytes) {
  return bytes > huge_page ? (bytes + huge_page - 1) / huge_page * huge_page
                           : std::bit_ceil(std::max<std::size_t>(bytes, 4096));
}

void* take(std::size_t size, int device) {
  const DeviceScope scope(device);
  std::optional<StreamUses> oldest;
  {
    const std::lock_guard lock(pool().mutex);
    auto& blocks = pool().blocks[size];
    const auto idle = std::find_if(blocks.begin(), blocks.end(),
                                   [](const ReturnedBlock& r) { return r.uses.passed(); });
    if (idle != blocks.end()) {
      void* block = idle->block;
      blocks.erase(idle);
      return block;
    }
    if (blocks.size() >= std::max<std::size_t>(4, most_bytes / size)) oldest = blocks.front().uses;
  }
  if (oldest) {
    oldest->synchronize("PinnedBuffer");
    return take(size, device);
  }
  void* block = nullptr;
  check(cudaHostAlloc(&block, size, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc",
        "PinnedBuffer");
  return block;
}

// The pinned storages in use, by their first byte.
struct Registry {
  std::mutex mutex;
  std::map<const char*, PinnedBuffer*> buffers;
};

Registry& registry() {
  static auto* registry = new Registry;  // never destroyed, like tensors of static duration
  return *registry;
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

PinnedBuffer::PinnedBuffer(std::size_t bytes, int device)
    : bytes_(bytes), data_(take(size_class(bytes), device)) {}

PinnedBuffer::~PinnedBuffer() {
  const std::lock_guard lock(pool().mutex);
  pool().blocks[size_class(bytes_)].push_back({data_, std::move(uses_)});
}

std::shared_ptr<Storage> pinned_storage(std::size_t bytes, int device) {
  if (device_count() == 0) fail<DeviceError>("pinned memory needs CUDA: {}", why_unavailable());
  if (bytes == 0) return std::make_shared<Storage>(0, Device::cpu());
  const auto buffer = std::make_shared<PinnedBuffer>(bytes, device);
  const auto* const begin = static_cast<const char*>(buffer->data());
  auto storage = std::make_shared<Storage>(buffer->data(), bytes, Device::cpu(), [buffer, begin] {
    const std::lock_guard lock(registry().mutex);
    registry().buffers.erase(begin);
  });
  const std::lock_guard lock(registry().mutex);
  registry().buffers.emplace(begin, buffer.get());
  return storage;
}

bool copy_from_pinned(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  const auto* const begin = static_cast<const char*>(from);
  const std::lock_guard lock(registry().mutex);
  auto next = registry().buffers.upper_bound(begin);
  if (next == registry().buffers.begin()) return false;
  const auto& [first, buffer] = *--next;
  if (begin + bytes > first + buffer->bytes()) return false;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()), "cudaMemcpyAsync",
        "copy to the device");
  buffer->record_use(stream);
  return true;
}

struct Readback::State {
  State(int device, std::size_t size)
      : stream(current_stream(device)), bytes(size), memory(bytes + sizeof(std::uint64_t), device) {
    const DeviceScope scope(device);
    check(cudaHostGetDevicePointer(&device_data, memory.data(), 0), "cudaHostGetDevicePointer",
          "Readback");
    flag().store(0, std::memory_order_relaxed);
  }
  ~State() {
    if (arrived()) return;
    try {
      memory.record_use(stream);  // The kernel may write later.
    } catch (const std::exception&) {
      // The device has failed, so that no kernel of it writes any more.
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::atomic_ref<std::uint64_t> flag() {
    return std::atomic_ref(
        *reinterpret_cast<std::uint64_t*>(static_cast<char*>(memory.data()) + bytes));
  }
  bool arrived() { return flag().load(std::memory_order_acquire) != 0; }

  Stream stream;
  std::size_t bytes;
  PinnedBuffer memory;
  void* device_data = nullptr;
};

Readback::Readback(int device, std::size_t bytes) : state_(new State(device, bytes)) {}
Readback::~Readback() = default;
Readback::Readback(Readback&&) noexcept = default;
Readback& Readback::operator=(Readback&&) noexcept = default;

void* Readback::device_data() const { return state_->device_data; }
bool Readback::arrived() const { return state_->arrived(); }
void Readback::wait(const char* op) const {
  if (!arrived()) state_->stream.synchronize(op);
}
const void* Readback::data() const { return state_->memory.data(); }

}  // namespace tutti::cuda
