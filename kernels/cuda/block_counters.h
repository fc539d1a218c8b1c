// Zeroed counters in device memory by which the blocks of a launch find out which of them finishes
// last. The counters belong to a stream and are never freed.
#pragma once

namespace tutti::kernels::cuda {

constexpr int counters_per_stream = 4096;

/// The `counters_per_stream` counters of the current stream. They are 0 whenever no kernel of the
/// stream runs: a kernel that counts one up resets it. The first call on a stream allocates them.
unsigned* block_counters(int device);

}  // namespace tutti::kernels::cuda
