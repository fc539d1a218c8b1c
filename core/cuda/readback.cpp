#include "readback.h"

#include "check.h"
#include "pinned_buffer.h"

#include <atomic>
#include <cstdint>

namespace tutti::cuda {

struct Readback::State {
  State(int device, std::size_t size)
      : stream(current_stream(device)), bytes(size), memory(bytes + sizeof(std::uint64_t)) {
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
