// next_serial() numbers what a process makes, by time. It does not say what a number belongs to.
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti {

/// Returns a number that no other call in this process returns, larger than those before. It says
/// which of two objects is older.
inline std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> latest{0};
  return 1 + latest.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tutti
