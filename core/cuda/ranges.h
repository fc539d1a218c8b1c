// Named ranges for Nsight Systems (NVTX). In a build without CUDA these functions do nothing; in a
// build with CUDA ranges cost next to nothing while no profiler is attached.
#pragma once

namespace tutti::cuda {

/// Returns whether the library was built with CUDA.
bool has_ranges();
/// Begins a range on the calling thread; ranges nest.
void push_range(const char* name);
/// Ends the innermost range of the calling thread.
void pop_range();

}  // namespace tutti::cuda
