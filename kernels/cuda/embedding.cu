// Embedding tables on CUDA devices. Gradients are added to the table without atomics, in the order
// of the positions: (row, position) pairs are sorted, so that the positions of each row are
// neighbours, and one group of threads adds them in float64.
#include "../embedding.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_kernels.h"

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

// A device matrix of `rows` rows.
template <class T>
struct TableView {
  T* data;
  std::int64_t rows, width, row_stride, column_stride;

  TableView(T* elements, const Tensor& t)
      : data(elements),
        rows(t.shape()[0]),
        width(t.shape()[1]),
        row_stride(t.strides()[0]),
        column_stride(t.strides()[1]) {}
  __device__ T& at(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

// Copies the rows at `indices` to `out`. If an index is out of range, its output elements are
// `absent`.
template <class U>
__global__ __launch_bounds__(block_threads) void gather_kernel(TableView<const U> weight,
                                                               const std::int64_t* indices,
                                                               std::int64_t elements, U absent,
                                                               U* out) {
  for (std::int64_t i = first_index(); i < elements; i += index_step()) {
    const std::int64_t position = i / weight.width, row = indices[position];
    out[i] = row >= 0 && row < weight.rows ? weight.at(row, i - position * weight.width) : absent;
  }
}

void gather(const Tensor& weight, const Tensor& indices, const Tensor& out) {
  if (out.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor positions = dense(indices);
  const Tensor nan = full({}, is_floating(weight.dtype()) ? NAN : 0, {.dtype = weight.dtype()});
  dispatch_width(size_of(weight.dtype()), [&]<class U>() {
    U absent = 0;
    std::memcpy(&absent, nan.raw(), sizeof absent);
    const TableView<const U> table(static_cast<const U*>(weight.raw()), weight);
    tutti::cuda::launch("embedding", gather_kernel<U>, grid_for(out.numel(), device), table,
                        positions.data<std::int64_t>(), out.numel(), absent,
                        static_cast<U*>(out.raw()));
  });
}

// ---- A bitonic sort (Batcher 1968). A key consists of a row and a position, 32 bits each.

constexpr int tile = 2 * block_threads;  // The number of keys that a block sorts.
constexpr std::uint64_t no_key = ~std::uint64_t{0};

__global__ __launch_bounds__(block_threads) void keys_kernel(const std::int64_t* indices,
                                                             std::int64_t count, std::int64_t rows,
                                                             std::int64_t padded,
                                                             std::uint64_t* keys) {
  for (std::int64_t i = first_index(); i < padded; i += index_step()) {
    // An index out of range has no row.
    const bool valid = i < count && indices[i] >= 0 && indices[i] < rows;
    keys[i] = valid ? static_cast<std::uint64_t>(indices[i]) << 32 | static_cast<std::uint64_t>(i)
                    : no_key;
  }
}

// Orders one pair of keys: pair number `pair` of the pairs whose keys are `step` apart. Runs of
// `run` keys are sorted in ascending and descending order alternately.
__device__ inline void order_pair(std::uint64_t* keys, std::int64_t first_key, std::int64_t pair,
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
    order_pair(keys, 0, pair, step, run);
}

// Performs all steps that compare keys within a tile, for run lengths from `first_run` to
// `last_run`.
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
      order_pair(own, first, threadIdx.x, step, run);
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

// ---- The sum of gradients.

constexpr int threads_per_row = 32;

// Adds the gradients of each row. The warp of a row's first key adds all of them; the warps of its
// other keys return.
template <class A>
__global__ __launch_bounds__(block_threads) void add_rows_kernel(const std::uint64_t* keys,
                                                                 std::int64_t count, TypedPointer g,
                                                                 TableView<A> weight_grad) {
  const std::int64_t width = weight_grad.width;
  for (std::int64_t i = first_index() / threads_per_row; i < count;
       i += index_step() / threads_per_row) {
    const std::uint64_t key = keys[i], row = key >> 32;
    if (key == no_key || (i > 0 && keys[i - 1] >> 32 == row)) continue;
    for (std::int64_t c = threadIdx.x % threads_per_row; c < width; c += threads_per_row) {
      A& to = weight_grad.at(static_cast<std::int64_t>(row), c);
      double sum = static_cast<double>(to);
      for (std::int64_t j = i; j < count && keys[j] >> 32 == row; ++j)
        sum += load_one<double>(g, static_cast<std::int64_t>(keys[j] & 0xffffffffu) * width + c);
      to = static_cast<A>(sum);
    }
  }
}

void scatter_add(const Tensor& g, const Tensor& indices, const Tensor& weight_grad) {
  if (g.numel() == 0) return;
  const int device = g.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const std::int64_t count = indices.numel();
  const Tensor positions = dense(indices), gradient = dense(g);
  const Tensor keys = sorted_keys(positions, weight_grad.shape()[0], device);
  dispatch(TrainTypes{}, g.dtype(), "embedding", [&]<class T>() {
    using A = ComputeType<T>;
    tutti::cuda::launch("embedding", add_rows_kernel<A>, grid_for(count * threads_per_row, device),
                        reinterpret_cast<const std::uint64_t*>(keys.data<std::int64_t>()), count,
                        TypedPointer(gradient), TableView<A>(weight_grad.data<A>(), weight_grad));
  });
}

}  // namespace

const Embedding& embedding() {
  static constexpr Embedding table{.gather = gather, .scatter_add = scatter_add};
  return table;
}

}  // namespace tutti::kernels::cuda
