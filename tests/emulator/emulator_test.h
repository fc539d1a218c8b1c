// Declares the functions by which emulator_test.cpp launches the kernels of emulator_test.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace emulator_test {

struct Shape {
  int blocks = 1, threads = 32;
  std::size_t shared_bytes = 0;
};

void launch_sum(Shape shape, const float* x, int n, float* partial, unsigned* counter,
                float* result);
void launch_block_numbers(Shape shape, float* results);
void launch_shuffles(int* up, int* down, int* from, int* halves, unsigned* votes);
void launch_divergent(int threads, int reach);
void launch_two_barriers();
void launch_reverse(int* x, bool barrier);
void launch_neighbours(short* y, int threads, int by, bool barrier);
void launch_neighbours_after_shuffle(short* y);
/// Which parts of the pattern are there by which a block learns that it is the last.
struct Fences {
  bool before = true, barrier = true, after = true;
};
void launch_hand_over(int* values, unsigned* counter, int* sum, Fences fences);
void launch_add_atomically(int* sum, bool all);
void launch_read_other_blocks(int* values);
void launch_read_shared(float* y, bool write);
/// Stores the sum of the four numbers at `x`, which are loaded as one vector.
void launch_load_vector(const float* x, float* y);
void launch_add(float* x, int n, float by, cudaStream_t stream);

}  // namespace emulator_test
