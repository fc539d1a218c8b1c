// copy(): copies memory as STREAM's copy does, to measure the bandwidth that a kernel which only
// moves bytes could reach on this machine.
#pragma once

#include <array>
#include <cstdint>

namespace tutti::benchmarks {

/// The ways to copy: vector loads and stores; the C library's memcpy; and streaming stores, which
/// bypass the cache (where the processor has them).
enum class Copy { plain, library, streaming };
inline constexpr std::array copies{Copy::plain, Copy::library, Copy::streaming};
const char* name_of(Copy how);

/// Copies with num_threads() threads. `bytes` must be a multiple of 64, and both addresses must be
/// 64-byte aligned.
void copy(void* to, const void* from, std::int64_t bytes, Copy how);

}  // namespace tutti::benchmarks
