// Kernels for the tests of the emulator: the patterns that the library's kernels are made of, and
// kernels with mistakes.
#include "emulator_test.h"

#include <emulator_launch.h>

namespace emulator_test {
namespace {

__device__ float warp_sum(float value) {
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(~0u, value, bits);
  return value;
}

// The last block to arrive adds up what all blocks wrote, and resets the counter.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    sum(const float* __restrict__ x, int n, float* partial, unsigned* counter, float* result) {
  __shared__ float warps[Threads / 32];
  __shared__ bool last;
  float value = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    value += __ldg(x + i);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (float w : warps) total += w;
    partial[blockIdx.x] = total;
    __threadfence();
    last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  __threadfence();
  float total = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) total += partial[b];
  *result = total;
}

// Thread 0 of every block stores the block's number in shared memory and the last thread reads it.
__global__ void block_numbers(float* results) {
  auto* shared = tutti::cuda::dynamic_shared<float>();
  __shared__ float own;
  if (threadIdx.x == 0) shared[0] = own = static_cast<float>(blockIdx.x + 1);
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) results[blockIdx.x] = shared[0] + 1000 * own;
}

__global__ void shuffles(int* up, int* down, int* from, int* halves, unsigned* votes) {
  const int i = static_cast<int>(threadIdx.x);
  up[i] = __shfl_up_sync(~0u, i, 1);
  down[i] = __shfl_down_sync(~0u, i, 1);
  from[i] = __shfl_sync(~0u, i, 5);
  halves[i] = __shfl_xor_sync(~0u, i, 16, 16);
  votes[i] = __ballot_sync(~0u, i % 3 == 0);
}

__global__ void divergent(int threads) {
  if (static_cast<int>(threadIdx.x) < threads) __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 16) __syncthreads();
  else __syncthreads();
}
// Reverses a block's values. Without the barrier a thread may read a value before it is written.
__global__ void reverse(int* x, bool barrier) {
  __shared__ int values[128];
  values[threadIdx.x] = x[threadIdx.x];
  if (barrier) __syncthreads();
  x[threadIdx.x] = values[127 - threadIdx.x];
}
// Each thread writes one element of 16 bits, and reads one of its neighbour `by` threads away.
__global__ void neighbours(short* y, int by, bool barrier) {
  __shared__ short values[64];
  values[threadIdx.x] = static_cast<short>(threadIdx.x);
  if (barrier) __syncwarp();
  y[threadIdx.x] = values[threadIdx.x + by];
}
// As neighbours, but the lanes wait for each other at a shuffle, which orders no memory.
__global__ void neighbours_after_shuffle(short* y) {
  __shared__ short values[33];
  values[threadIdx.x] = 1;
  if (threadIdx.x == 0) values[32] = 1;
  const int other = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x), 1);
  y[threadIdx.x] = values[other];
}
// Block by block, all threads add what they find and leave a number for the next block.
__global__ void hand_over(int* values, unsigned* counter, int* sum, Fences fences) {
  __shared__ bool last;
  values[blockIdx.x * blockDim.x + threadIdx.x] = 1;
  if (fences.before) __threadfence();
  if (fences.barrier) __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  if (fences.after) __threadfence();
  if (threadIdx.x != 1) return;
  *sum = 0;
  for (unsigned i = 0; i < gridDim.x * blockDim.x; ++i) *sum += values[i];
}
__global__ void add_atomically(int* sum, bool all) {
  if (all || threadIdx.x > 0) atomicAdd(sum, 1);
  else *sum += 1;
}
__global__ void read_other_blocks(int* values) {
  values[blockIdx.x] = static_cast<int>(blockIdx.x);
  if (values[(blockIdx.x + 1) % gridDim.x] < 0) values[gridDim.x] = 1;
}
__global__ void read_shared(float* y, bool write) {
  __shared__ float value;
  if (write) value = 1;
  *y = value;
}
__global__ void add(float* x, int n, float by) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += by;
}

template <class... Parameters, class... Arguments>
void start(void (*kernel)(Parameters...), Shape shape, cudaStream_t stream,
           Arguments... arguments) {
  std::tuple<Parameters...> values(arguments...);
  std::apply(
      [&](auto&... value) {
        void* addresses[] = {&value..., nullptr};
        const cudaError_t status = cudaLaunchKernel(
            tutti::cuda::address_of(kernel), static_cast<unsigned>(shape.blocks),
            static_cast<unsigned>(shape.threads), addresses, shape.shared_bytes, stream);
        if (status != cudaSuccess) throw std::runtime_error("refused");
      },
      values);
}

__global__ void load_vector(const float* x, float* y) {
  const float4 v = *reinterpret_cast<const float4*>(x);
  *y = v.x + v.y + v.z + v.w;
}

}  // namespace

void launch_sum(Shape shape, const float* x, int n, float* partial, unsigned* counter,
                float* result) {
  start(sum<96>, shape, nullptr, x, n, partial, counter, result);
}
void launch_block_numbers(Shape shape, float* results) {
  start(block_numbers, shape, nullptr, results);
}
void launch_shuffles(int* up, int* down, int* from, int* halves, unsigned* votes) {
  start(shuffles, {1, 32}, nullptr, up, down, from, halves, votes);
}
void launch_divergent(int threads, int reach) { start(divergent, {1, threads}, nullptr, reach); }
void launch_two_barriers() { start(two_barriers, {1, 32}, nullptr); }
void launch_reverse(int* x, bool barrier) { start(reverse, {1, 128}, nullptr, x, barrier); }
void launch_neighbours(short* y, int threads, int by, bool barrier) {
  start(neighbours, {1, threads}, nullptr, y, by, barrier);
}
void launch_neighbours_after_shuffle(short* y) {
  start(neighbours_after_shuffle, {1, 32}, nullptr, y);
}
void launch_hand_over(int* values, unsigned* counter, int* sum, Fences fences) {
  start(hand_over, {5, 64}, nullptr, values, counter, sum, fences);
}
void launch_add_atomically(int* sum, bool all) {
  start(add_atomically, {4, 64}, nullptr, sum, all);
}
void launch_read_other_blocks(int* values) {
  start(read_other_blocks, {.blocks = 4, .threads = 1}, nullptr, values);
}
void launch_read_shared(float* y, bool write) { start(read_shared, {1, 1}, nullptr, y, write); }
void launch_add(float* x, int n, float by, cudaStream_t stream) {
  start(add, {(n + 31) / 32, 32}, stream, x, n, by);
}
void launch_load_vector(const float* x, float* y) { start(load_vector, {1, 1}, nullptr, x, y); }

}  // namespace emulator_test
