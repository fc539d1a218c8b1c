// PinnedBuffer is page-locked host memory, through which bytes move between host and device while
// both keep working; kernels can access it, too. Blocks come from a process-wide pool and go back
// to it; a block that a device may still use is handed out again only when the device has finished
// with it.
#pragma once

#include "stream.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace tutti::cuda {

/// Holds the last use of a block on each stream that has used it.
class StreamUses {
 public:
  void record(const Stream& stream);
  /// Returns whether every stream has passed its last use, without waiting.
  bool passed() const;
  /// Makes the host wait for every stream. `op` names the caller for errors.
  void synchronize(const char* op) const;

 private:
  std::vector<std::pair<Stream, Event>> events_;
};

class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Says that the device reads or writes the block up to this point of the stream. The pool does
  /// not hand the block out before every stream has passed its last use.
  void record_use(const Stream& stream) { uses_.record(stream); }
  const StreamUses& uses() const { return uses_; }

 private:
  std::size_t bytes_;
  void* data_;
  StreamUses uses_;
};

}  // namespace tutti::cuda
