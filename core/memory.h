// Where bytes come from: one Allocator per device, and Storage, the refcounted block that tensors
// share. Blocks are kept and reused, because a fresh large block costs page faults on every
// training step. Moving bytes between devices is here too; what the bytes mean is the tensor's
// business.
#pragma once

#include "device.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tutti {

/// Bytes of one device. `live` is held by tensors, `cached` is kept for reuse, `peak` is the
/// highest `live`.
struct MemoryStats {
  std::size_t live = 0;
  std::size_t cached = 0;
  std::size_t peak = 0;
  std::size_t system_allocations = 0;  ///< how often the system was asked for memory, ever
};

/// A device's source of memory. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes` bytes, 64-byte aligned, uninitialised. Error (with what is live) when there
  /// are none left.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Gives a block back; `bytes` as it was asked for.
  virtual void release(void* block, std::size_t bytes) noexcept = 0;
  virtual MemoryStats stats() const = 0;
  /// Returns what is cached to the system.
  virtual void trim() = 0;
};

Allocator& allocator(Device device);

/// A block of memory with an owner, shared by every tensor that views it.
class Storage {
 public:
  Storage(std::size_t bytes, Device device);
  /// Wraps memory that somebody else owns; `release` runs when the last view is gone.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> release);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  /// Counts the in-place changes; a tensor saved for backward remembers it (autograd/record.h).
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void* data_;
  std::size_t bytes_;
  Device device_;
  std::function<void()> release_;
  std::atomic<std::uint64_t> version_{0};
};

/// Copies bytes between any two devices. Ordered after earlier work on either; asynchronous where
/// the device is.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device,
                std::size_t bytes);
void zero_bytes(void* data, Device device, std::size_t bytes);

}  // namespace tutti
