// Named ranges for Nsight Systems (NVTX). In a build without CUDA these functions do nothing.
#pragma once

namespace tutti::cuda {

/// Returns whether a profiler receives the ranges: whether the library was built with CUDA and the
/// environment variable NVTX_INJECTION64_PATH names a tool, as Nsight Systems sets it.
bool has_ranges();
/// Begins a range on the calling thread; ranges nest.
void push_range(const char* name);
/// Ends the innermost range of the calling thread.
void pop_range();

}  // namespace tutti::cuda
