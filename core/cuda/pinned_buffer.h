// PinnedBuffer is page-locked host memory, through which bytes move between host and device while
// both keep working. Blocks come from a process-wide pool and go back to it; a block that a device
// may still use is handed out again only when the device has finished with it.
#pragma once

#include "stream.h"

#include <cstddef>

namespace tutti::cuda {

class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Says that the device reads or writes the block up to this point of the stream. The pool does
  /// not hand the block out before the stream has passed it.
  void record_use(const Stream& stream) { last_use_.record(stream); }
  const Event& last_use() const { return last_use_; }

 private:
  std::size_t bytes_;
  void* data_;
  Event last_use_;
};

}  // namespace tutti::cuda
