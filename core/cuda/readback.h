// Readback: a few bytes on their way from a device to the host, for whoever wants to know them some
// time but not to wait.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::cuda {

class Readback {
 public:
  /// Enqueues the copy on the current stream of the device. Not while that is captured: a graph
  /// would copy to memory that is somebody else's by then.
  Readback(const void* from, int device, std::size_t bytes);
  ~Readback();
  Readback(Readback&&) noexcept;
  Readback& operator=(Readback&&) noexcept;

  bool arrived() const;             ///< asks, without waiting
  void wait(const char* op) const;  ///< counted
  const void* data() const;         ///< once it has arrived

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::cuda
