// Gather along a dimension and its gradient on CUDA devices. One thread adds all elements of a
// slice along the dimension, in their order: no atomics are needed, and results are deterministic.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "dim_slices.h"

#include <cmath>
#include <cstring>

namespace tutti::kernels::cuda {

namespace {

// The indices along the dimension that is indexed, with its size and stride in the tensor.
struct IndexedDimension {
  const std::int64_t* index;
  std::int64_t size, stride;
};

// If an index is out of range, its output element is `absent`.
template <class U>
__global__ __launch_bounds__(block_threads) void gather_kernel(OffsetCalculator calculator,
                                                               const U* x,
                                                               IndexedDimension dimension, U absent,
                                                               U* out) {
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<3> offsets = calculator.offsets<3>(unit);
    const std::int64_t i = dimension.index[offsets.at[2]];
    out[offsets.at[0]] = i >= 0 && i < dimension.size ? x[offsets.at[1] + i * dimension.stride]
                                                      : absent;
  }
}

void gather(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  if (out.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor first = first_elements(x, dim, index);
  const Tensor* const tensors[] = {&out, &first, &index};
  const OffsetCalculator calculator(tensors, false);
  const IndexedDimension dimension{index.data<std::int64_t>(), x.shape()[dim], x.strides()[dim]};
  const Tensor nan = full({}, is_floating(x.dtype()) ? NAN : 0, {.dtype = x.dtype()});
  dispatch_width(size_of(x.dtype()), [&]<class U>() {
    U absent = 0;
    std::memcpy(&absent, nan.raw(), sizeof absent);
    tutti::cuda::launch(op, gather_kernel<U>, grid_for(calculator.units, device), calculator,
                        static_cast<const U*>(x.raw()), dimension, absent,
                        static_cast<U*>(out.raw()));
  });
}

template <class A>
__global__ __launch_bounds__(block_threads) void scatter_add_kernel(
    OffsetCalculator starts, SlicePointer g, std::int64_t length, IndexedDimension dimension,
    std::int64_t index_stride, A* out) {
  for (std::int64_t slice = first_index(); slice < starts.units; slice += index_step()) {
    const Offsets<3> offsets = starts.offsets<3>(slice);
    for (std::int64_t j = 0; j < length; ++j) {
      const std::int64_t i = dimension.index[offsets.at[2] + j * index_stride];
      if (i >= 0 && i < dimension.size)
        out[offsets.at[0] + i * dimension.stride] += g.load<A>(offsets.at[1], j);
    }
  }
}

void scatter_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& out) {
  if (g.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  // The slices of the output that have indices: `index` may be smaller in the other dimensions.
  Shape shape = index.shape();
  shape[dim] = out.shape()[dim];
  const SlicedTensor sliced_out(out.alias(shape, out.strides(), out.offset()), dim),
      sliced_g(g, dim), sliced_index(index, dim);
  const Tensor* const tensors[] = {&sliced_out.starts, &sliced_g.starts, &sliced_index.starts};
  const OffsetCalculator starts(tensors, false);
  const IndexedDimension dimension{index.data<std::int64_t>(), out.shape()[dim],
                                   out.strides()[dim]};
  dispatch(FloatTypes{}, out.dtype(), "scatter_add", [&]<class A>() {
    tutti::cuda::launch(op, scatter_add_kernel<A>, grid_for(starts.units, device), starts,
                        SlicePointer(g, dim), sliced_index.length, dimension, sliced_index.stride,
                        out.data<A>());
  });
}

}  // namespace

extern const Indexing indexing{.gather = gather, .scatter_add = scatter_add};

}  // namespace tutti::kernels::cuda
