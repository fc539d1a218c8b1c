// Copying memory as STREAM's copy does: what a kernel that only moves bytes could reach on this
// machine.
#pragma once

#include <array>
#include <cstdint>

namespace tutti::benchmarks {

/// Vector loads and stores; the C library's memcpy; and stores that go past the cache (where the
/// processor has them).
enum class Copy { plain, library, streaming };
inline constexpr std::array copies{Copy::plain, Copy::library, Copy::streaming};
const char* name_of(Copy how);

/// Copies with num_threads() threads. `bytes` is a multiple of 64; both addresses are 64-byte
/// aligned.
void copy(void* to, const void* from, std::int64_t bytes, Copy how);

}  // namespace tutti::benchmarks
