// Page-locked host memory, which a device reads and writes without staging: blocks of a pool, the
// Storage of a CPU tensor, and bytes that a kernel writes for the host. This header needs none of
// CUDA's.
#pragma once

#include "../memory.h"
#include "stream.h"

#include <cstddef>
#include <memory>
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

/// Page-locked host memory, through which bytes move between host and device while both keep
/// working; kernels of every device can access it, too. Blocks come from a process-wide pool and go
/// back to it; a block that a device may still use is handed out again only when the device has
/// finished with it.
class PinnedBuffer {
 public:
  /// Takes a block of the pool, or allocates one in the context of `device`, which the caller uses.
  PinnedBuffer(std::size_t bytes, int device);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Says that the device reads or writes the block up to this point of the stream. The pool does
  /// not hand the block out before every stream has passed its last use.
  void record_use(const Stream& stream) { uses_.record(stream); }

 private:
  std::size_t bytes_;
  void* data_;
  StreamUses uses_;
};

/// Returns uninitialised page-locked memory of the CPU. Copies from it to a device are asynchronous
/// and read the memory itself: its content must not change before the device has passed the copy.
/// Released memory is reused when the device has finished with it. `device` is one that the process
/// uses, since allocating makes a context there. Throws a DeviceError that says why where there is
/// no CUDA.
std::shared_ptr<Storage> pinned_storage(std::size_t bytes, int device);

/// Starts a copy to the device of `stream` if `from` lies in a pinned storage, else returns false.
bool copy_from_pinned(void* to, const void* from, std::size_t bytes, const Stream& stream);

/// Receives a few bytes that a kernel writes for the host, without a copy on the stream and without
/// making the host wait: the caller asks later whether they have arrived. A flag of 8 bytes follows
/// the bytes: the kernel sets it to 1 after it has written them, with a fence of the system in
/// between.
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
