// Named ranges for Nsight Systems (NVTX). Without CUDA there are none; with it, they cost next to
// nothing while no profiler is attached.
#pragma once

namespace tutti::cuda {

bool has_ranges();                  ///< whether the library was built with CUDA
void push_range(const char* name);  ///< on the calling thread
void pop_range();

}  // namespace tutti::cuda
