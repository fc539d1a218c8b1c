// A Readback receives a few bytes that a kernel writes for the host, without a copy on the stream
// and without making the host wait: the caller asks later whether they have arrived.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::cuda {

/// Host memory that a kernel can write. A flag of 8 bytes follows the bytes: the kernel sets it to
/// 1 after it has written them, with a fence of the system in between.
class Readback {
 public:
  /// Takes the memory, with a flag of 0, for a kernel on the current stream of the device. `bytes`
  /// is a multiple of 8. A captured kernel must not use it: a replay would write to host memory
  /// that has another user by then.
  Readback(int device, std::size_t bytes);
  ~Readback();
  Readback(Readback&&) noexcept;
  Readback& operator=(Readback&&) noexcept;

  /// Returns the address by which kernels of the device reach the bytes and the flag.
  void* device_data() const;
  /// Returns whether the bytes have arrived, without waiting and without asking CUDA.
  bool arrived() const;
  /// Unless the bytes have arrived, makes the host wait for the stream and counts the wait. `op`
  /// names the caller for errors.
  void wait(const char* op) const;
  /// Returns the bytes, which are valid once they have arrived.
  const void* data() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::cuda
