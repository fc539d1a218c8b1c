// Embedding tables. Gradients are added back without atomics, in the order of the positions: (row,
// position) pairs are sorted, and each row's positions are then one run, added up by one group of
// threads.
#include "../embedding.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_loops.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace tutti::kernels::cuda {
namespace {

Tensor dense(const Tensor& x) {
  if (x.is_contiguous()) return x;
  const Tensor result = empty(x.shape(), {x.dtype(), x.device()});
  copy(x, result);
  return result;
}

template <class U>
__global__ __launch_bounds__(block_threads) void gather_kernel(
    const U* weight, std::int64_t rows, std::int64_t row, std::int64_t column,
    const std::int64_t* indices, std::int64_t elements, std::int64_t width, U absent, U* out) {
  for (std::int64_t i = first_index(); i < elements; i += index_step()) {
    const std::int64_t position = i / width, index = indices[position];
    out[i] = index >= 0 && index < rows ? weight[index * row + (i - position * width) * column]
                                        : absent;
  }
}

template <class U>
void gather_as(const Tensor& weight, const Tensor& indices, const Tensor& out, int device) {
  const Tensor nan = full({}, is_floating(weight.dtype()) ? NAN : 0, {.dtype = weight.dtype()});
  U absent = 0;
  std::memcpy(&absent, nan.raw(), sizeof absent);
  tutti::cuda::launch("embedding", gather_kernel<U>, grid_for(out.numel(), device),
                      static_cast<const U*>(weight.raw()), weight.shape()[0], weight.strides()[0],
                      weight.strides()[1], indices.data<std::int64_t>(), out.numel(),
                      weight.shape()[1], absent, static_cast<U*>(out.raw()));
}

void gather(const Tensor& weight, const Tensor& indices, const Tensor& out) {
  if (out.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor positions = dense(indices);
  switch (size_of(weight.dtype())) {
    case 1: return gather_as<std::uint8_t>(weight, positions, out, device);
    case 2: return gather_as<std::uint16_t>(weight, positions, out, device);
    case 4: return gather_as<std::uint32_t>(weight, positions, out, device);
    default: return gather_as<std::uint64_t>(weight, positions, out, device);
  }
}

// ---- the sort: bitonic (Batcher 1968), of keys that are a row and a position. Fewer than 2^32 of
// either.

constexpr int tile = 2 * block_threads;  // keys that a block sorts in shared memory
constexpr std::uint64_t no_key = ~std::uint64_t{0};

__global__ __launch_bounds__(block_threads) void keys_kernel(const std::int64_t* indices,
                                                             std::int64_t count, std::int64_t rows,
                                                             std::int64_t padded,
                                                             std::uint64_t* keys) {
  for (std::int64_t i = first_index(); i < padded; i += index_step()) {
    const bool valid = i < count && indices[i] >= 0 &&
                       indices[i] < rows;  // others belong to no row
    keys[i] = valid ? static_cast<std::uint64_t>(indices[i]) << 32 | static_cast<std::uint64_t>(i)
                    : no_key;
  }
}

// Compares the keys `step` apart of pair number `pair`, within runs of `run` keys that are sorted
// up and down in turn.
__device__ inline void compare(std::uint64_t* keys, std::int64_t first_key, std::int64_t pair,
                               std::int64_t step, std::int64_t run) {
  const std::int64_t low = 2 * step * (pair / step) + pair % step;
  const bool up = ((first_key + low) & run) == 0;
  const std::uint64_t a = keys[low], b = keys[low + step];
  if ((a > b) == up) {
    keys[low] = b;
    keys[low + step] = a;
  }
}

__global__ __launch_bounds__(block_threads) void sort_step_kernel(std::uint64_t* keys,
                                                                  std::int64_t padded,
                                                                  std::int64_t step,
                                                                  std::int64_t run) {
  for (std::int64_t pair = first_index(); pair < padded / 2; pair += index_step())
    compare(keys, 0, pair, step, run);
}

// All steps that stay within a tile, for runs from `first_run` to `last_run`.
__global__ __launch_bounds__(block_threads) void sort_tile_kernel(std::uint64_t* keys,
                                                                  std::int64_t first_run,
                                                                  std::int64_t last_run) {
  __shared__ std::uint64_t own[tile];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * tile;
  for (int i = static_cast<int>(threadIdx.x); i < tile; i += block_threads)
    own[i] = keys[first + i];
  __syncthreads();
  for (std::int64_t run = first_run; run <= last_run; run *= 2)
    for (std::int64_t step = run / 2 < tile / 2 ? run / 2 : tile / 2; step > 0; step /= 2) {
      compare(own, first, threadIdx.x, step, run);
      __syncthreads();
    }
  for (int i = static_cast<int>(threadIdx.x); i < tile; i += block_threads)
    keys[first + i] = own[i];
}

Tensor sorted_keys(const Tensor& indices, std::int64_t rows, int device) {
  const std::int64_t count = indices.numel();
  if (count >= (std::int64_t{1} << 32) || rows >= (std::int64_t{1} << 32))
    fail<ValueError>(
        "embedding: the gradient of {} positions in a table of {} rows; fewer than 2^32 of either "
        "are supported on a GPU",
        count, rows);
  const auto padded = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(count < tile ? tile : count)));
  const Tensor memory = empty({padded}, {int64, indices.device()});
  auto* keys = reinterpret_cast<std::uint64_t*>(memory.data<std::int64_t>());
  tutti::cuda::launch("embedding", keys_kernel, grid_for(padded, device),
                      indices.data<std::int64_t>(), count, rows, padded, keys);
  const tutti::cuda::Grid tiles{.blocks = static_cast<unsigned>(padded / tile),
                                .threads = block_threads};
  tutti::cuda::launch("embedding", sort_tile_kernel, tiles, keys, 2, tile);
  for (std::int64_t run = 2 * tile; run <= padded; run *= 2) {
    for (std::int64_t step = run / 2; step >= tile; step /= 2)
      tutti::cuda::launch("embedding", sort_step_kernel, grid_for(padded / 2, device), keys, padded,
                          step, run);
    tutti::cuda::launch("embedding", sort_tile_kernel, tiles, keys, run, run);
  }
  return memory;
}

// A warp for each key that is the first of its row; the others have nothing to do.
constexpr int row_threads = 32;

template <class A>
__global__ __launch_bounds__(block_threads) void add_rows_kernel(const std::uint64_t* keys,
                                                                 std::int64_t count, Operand g,
                                                                 std::int64_t width, A* weight_grad,
                                                                 std::int64_t row,
                                                                 std::int64_t column) {
  for (std::int64_t i = first_index() / row_threads; i < count; i += index_step() / row_threads) {
    const std::uint64_t key = keys[i], own = key >> 32;
    if (key == no_key || (i > 0 && keys[i - 1] >> 32 == own)) continue;
    for (std::int64_t c = threadIdx.x % row_threads; c < width; c += row_threads) {
      A* const to = weight_grad + static_cast<std::int64_t>(own) * row + c * column;
      A sum = *to;
      for (std::int64_t j = i; j < count && keys[j] >> 32 == own; ++j)
        sum += load_one<A>(g, static_cast<std::int64_t>(keys[j] & 0xffffffffu) * width + c);
      *to = sum;
    }
  }
}

void scatter_add(const Tensor& g, const Tensor& indices, const Tensor& weight_grad) {
  if (g.numel() == 0) return;
  const int device = g.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const std::int64_t count = indices.numel(), width = weight_grad.shape()[1];
  const Tensor positions = dense(indices), gradient = dense(g);
  const Tensor keys = sorted_keys(positions, weight_grad.shape()[0], device);
  dispatch(TrainTypes{}, g.dtype(), "embedding", [&]<class T>() {
    using A = Compute<T>;
    tutti::cuda::launch("embedding", add_rows_kernel<A>, grid_for(count * row_threads, device),
                        reinterpret_cast<const std::uint64_t*>(keys.data<std::int64_t>()), count,
                        Operand(gradient), width, weight_grad.data<A>(), weight_grad.strides()[0],
                        weight_grad.strides()[1]);
  });
}

}  // namespace

const Embedding& embedding() {
  static constexpr Embedding table{gather, scatter_add};
  return table;
}

}  // namespace tutti::kernels::cuda
