// The counters by which the blocks of a launch learn which of them is the last to finish.
#pragma once

namespace tutti::kernels::cuda {

constexpr int tickets_of_stream = 4096;

/// Counters of the current stream, 0 whenever no kernel of this stream runs: who counts one up
/// resets it. Made at the first use of a stream.
unsigned* tickets(int device);

}  // namespace tutti::kernels::cuda
