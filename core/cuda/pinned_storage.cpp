#include "pinned_storage.h"

#include "check.h"
#include "pinned_buffer.h"
#include "runtime.h"

#include <map>
#include <mutex>

namespace tutti::cuda {
namespace {

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

std::shared_ptr<Storage> pinned_storage(std::size_t bytes) {
  if (device_count() == 0) fail<DeviceError>("pinned memory needs CUDA: {}", why_unavailable());
  if (bytes == 0) return std::make_shared<Storage>(0, Device::cpu());
  const auto buffer = std::make_shared<PinnedBuffer>(bytes);
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

}  // namespace tutti::cuda
