// The gradient of looking up the rows of a table on CUDA devices. Gradients are added to the table
// without atomics, in the order of the positions: (row, position) pairs are sorted, so that the
// positions of each row are neighbours, and one group of threads adds them in float64.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "element.h"

#include <cub/device/device_radix_sort.cuh>

#include <bit>

namespace tutti::kernels::cuda {
namespace {

Tensor dense(const Tensor& x) {
  if (x.is_contiguous()) return x;
  const Tensor result = empty(x.shape(), {x.dtype(), x.device()});
  table().elementwise.copy(x, result);
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

// ---- Sorted keys. A key consists of a row and a position, 32 bits each.

__global__ __launch_bounds__(block_threads) void keys_kernel(const std::int64_t* indices,
                                                             std::int64_t count, std::int64_t rows,
                                                             std::uint64_t* keys) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    // An index out of range comes behind all rows.
    const std::int64_t row = indices[i] >= 0 && indices[i] < rows ? indices[i] : rows;
    keys[i] = static_cast<std::uint64_t>(row) << 32 | static_cast<std::uint64_t>(i);
  }
}

// Returns the keys of all positions, sorted by row and then by position.
Tensor sorted_keys(const Tensor& indices, std::int64_t rows, int device) {
  const std::int64_t count = indices.numel();
  if (count >= (std::int64_t{1} << 32) || rows >= (std::int64_t{1} << 32))
    fail<ValueError>(
        "embedding: the gradient of {} positions in a table of {} rows; fewer than 2^32 of either "
        "are supported on a GPU",
        count, rows);
  const Tensor unsorted = empty({count}, {int64, indices.device()}), sorted = empty_like(unsorted);
  auto* from = reinterpret_cast<std::uint64_t*>(unsorted.data<std::int64_t>());
  auto* to = reinterpret_cast<std::uint64_t*>(sorted.data<std::int64_t>());
  tutti::cuda::launch("embedding", keys_kernel, grid_for(count, device),
                      indices.data<std::int64_t>(), count, rows, from);
  // The positions are in order already, and a radix sort keeps the order of equal rows.
  const int end_bit = 32 + std::bit_width(static_cast<std::uint64_t>(rows));
  const cudaStream_t stream = tutti::cuda::current_stream(device).get();
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    tutti::cuda::check(
        cub::DeviceRadixSort::SortKeys(scratch, bytes, from, to, count, 32, end_bit, stream),
        "cub::DeviceRadixSort::SortKeys", "embedding");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);  // sets `bytes`
  const Tensor scratch = empty({static_cast<std::int64_t>(bytes)}, {uint8, indices.device()});
  sort(scratch.raw(), bytes);
  return sorted;
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
    const auto row_of = [keys](std::int64_t at) {
      return static_cast<std::int64_t>(keys[at] >> 32);
    };
    const std::int64_t row = row_of(i);
    if (row == weight_grad.rows || (i > 0 && row_of(i - 1) == row)) continue;
    for (std::int64_t c = threadIdx.x % threads_per_row; c < width; c += threads_per_row) {
      A& to = weight_grad.at(row, c);
      double sum = static_cast<double>(to);
      for (std::int64_t j = i; j < count && row_of(j) == row; ++j)
        sum += load_one<double>(g, static_cast<std::int64_t>(keys[j] & 0xffffffffu) * width + c);
      to = static_cast<A>(sum);
    }
  }
}

}  // namespace

void add_rows(const Tensor& g, const Tensor& indices, const Tensor& weight_grad) {
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

}  // namespace tutti::kernels::cuda
