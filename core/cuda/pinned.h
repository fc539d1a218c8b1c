// Pinned: page-locked host memory, through which bytes move between host and device while both go
// on. Blocks come from a process-wide pool and go back to it; one that a device may still be using
// is handed out again when that has passed.
#pragma once

#include "stream.h"

#include <cstddef>

namespace tutti::cuda {

class Pinned {
 public:
  explicit Pinned(std::size_t bytes);
  ~Pinned();
  Pinned(Pinned&& other) noexcept;
  Pinned& operator=(Pinned&&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// The device reads or writes the block up to this point of the stream: it is not given to
  /// anybody else before.
  void used_on(const Stream& stream) { last_use_.record(stream); }
  const Event& last_use() const { return last_use_; }

 private:
  std::size_t bytes_;
  void* data_;
  Event last_use_;
};

}  // namespace tutti::cuda
