// Memory: one Allocator for each device, Storage, which is the block of memory that tensors share,
// and functions that copy bytes between devices. Allocators keep released blocks and reuse them,
// because a fresh large block costs page faults in every training step; large ones that are not
// needed again go back to the system in time. core/tensor.h gives the bytes shape and dtype.
#pragma once

#include "device.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tutti {

/// MemoryStats counts the bytes of one device.
struct MemoryStats {
  std::size_t live = 0;    ///< bytes in use by tensors
  std::size_t cached = 0;  ///< bytes kept for reuse
  std::size_t peak = 0;    ///< the highest `live` so far, or since reset_peak()
  /// How often the system was asked for memory so far. On CUDA, how often stats() found the
  /// driver's pool larger than the time before.
  std::size_t system_allocations = 0;
};

/// An Allocator hands out the memory of one device. It is thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// Returns at least `bytes` bytes, uninitialised and aligned to 64 bytes. Throws an Error that
  /// says how many bytes are live if none are left.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Takes a block back. `bytes` is the size that allocate() was called with.
  virtual void release(void* block, std::size_t bytes) noexcept = 0;
  virtual MemoryStats stats() const = 0;
  /// Makes `peak` begin anew from what is live.
  virtual void reset_peak() = 0;
  /// Returns what is cached to the system.
  virtual void trim() = 0;
};

/// Returns the allocator of a device.
Allocator& allocator(Device device);

/// A Storage is a block of memory that every tensor with a view of it shares.
class Storage {
 public:
  /// What one owner keeps beside the data.
  struct Companion {
    virtual ~Companion() = default;
  };

  Storage(std::size_t bytes, Device device);
  /// Wraps memory that the caller owns. `release` runs when the last view is gone.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> release);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  /// Returns the number of changes in place so far. A tensor saved for backward remembers the
  /// version and is refused if it has changed (autograd/record.h).
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

  // Each is null unless its owner has set it, which it may do while one thread alone uses the
  // storage. Nobody else reads it.
  std::unique_ptr<Companion> packed_weights;  ///< of kernels/cpu/packed_weights.h
  std::unique_ptr<Companion> rounded_weight;  ///< of kernels/rounded_weights.cpp
  std::unique_ptr<Companion> recipe;          ///< of autograd/saved.cpp

 private:
  void* data_;
  std::size_t bytes_;
  Device device_;
  std::function<void()> release_;
  std::atomic<std::uint64_t> version_{0};
};

/// Raises the storage's version. Every operation that changes its data in place calls this. Where a
/// kernel keeps something beside the data and a cuda::Graph is captured, each of its replays raises
/// the version, too.
void count_change(const std::shared_ptr<Storage>& storage);

/// Copies bytes between any two devices, after earlier work on both. The copy is asynchronous
/// between CUDA devices; see cuda::copy_bytes for copies from and to the host.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device,
                std::size_t bytes);
/// Sets bytes of a device to zero, after earlier work on it.
void zero_bytes(void* data, Device device, std::size_t bytes);

}  // namespace tutti
