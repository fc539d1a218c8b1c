// Readback copies a few bytes from a device to the host without making the host wait: the caller
// asks later whether they have arrived.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::cuda {

class Readback {
 public:
  /// Enqueues the copy on the current stream of the device. It must not be called while the stream
  /// is captured: a replay would write to host memory that has another user by then.
  Readback(const void* from, int device, std::size_t bytes);
  ~Readback();
  Readback(Readback&&) noexcept;
  Readback& operator=(Readback&&) noexcept;

  /// Returns whether the bytes have arrived, without waiting.
  bool arrived() const;
  /// Makes the host wait for the bytes, and counts the wait. `op` names the caller for errors.
  void wait(const char* op) const;
  /// Returns the bytes, which are valid once they have arrived.
  const void* data() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::cuda
