// Embedding look-up and its gradient on the CPU.
#include "../kernels.h"

#include "dim_slices.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// Throws if an index is out of range. The callers check before they write anything.
void check_indices(const Tensor& indices, std::int64_t rows) {
  const std::int64_t* data = indices.data<std::int64_t>();
  DimSlices<1>(indices.shape(), {indices.strides()})
      .for_each_in(0, indices.numel(), [&](const auto& offsets) {
        if (data[offsets[0]] < 0 || data[offsets[0]] >= rows)
          fail<ValueError>("embedding: expected indices from 0 to {}, got {}", rows - 1,
                           data[offsets[0]]);
      });
}

void gather(const Tensor& weight, const Tensor& indices, const Tensor& out) {
  check_indices(indices, weight.shape()[0]);
  const std::int64_t width = weight.shape()[1], row_stride = weight.strides()[0],
                     column_stride = weight.strides()[1];
  const std::int64_t* index = indices.data<std::int64_t>();
  const Strides position_strides = Dims(out.strides().begin(), out.strides().end() - 1);
  const DimSlices<2> slices(indices.shape(), {indices.strides(), position_strides});
  dispatch(AllTypes{}, weight.dtype(), "embedding", [&]<class T>() {
    const T* from = weight.data<T>();
    T* to = out.data<T>();
    slices.for_each(width, [=](const auto& offsets) {
      const T* source = from + index[offsets[0]] * row_stride;
      T* target = to + offsets[1];
      if (column_stride == 1)
        std::memcpy(target, source, static_cast<std::size_t>(width) * sizeof(T));
      else
        for (std::int64_t i = 0; i < width; ++i) target[i] = source[i * column_stride];
    });
  });
}

void scatter_add(const Tensor& g, const Tensor& indices, const Tensor& weight_grad) {
  const std::int64_t width = weight_grad.shape()[1], row_stride = weight_grad.strides()[0],
                     column_stride = weight_grad.strides()[1];
  const std::int64_t stride = g.strides()[g.rank() - 1];
  const std::int64_t* index = indices.data<std::int64_t>();
  const Strides position_strides = Dims(g.strides().begin(), g.strides().end() - 1);
  const DimSlices<2> slices(indices.shape(), {indices.strides(), position_strides});
  // The offsets of all gradients, sorted by row. Those of a row end before ends[row].
  std::vector<std::int64_t> row_ends(static_cast<std::size_t>(weight_grad.shape()[0] + 1)),
      offsets_by_row(static_cast<std::size_t>(slices.count()));
  std::int64_t *const ends = row_ends.data(), *const sources = offsets_by_row.data();
  slices.for_each_in(0, slices.count(), [=](const auto& at) { ++ends[index[at[0]] + 1]; });
  std::partial_sum(row_ends.begin(), row_ends.end(), row_ends.begin());
  slices.for_each_in(0, slices.count(),
                     [=](const auto& at) { sources[ends[index[at[0]]]++] = at[1]; });
  dispatch(RealTypes{}, g.dtype(), "embedding", [&]<class T>() {
    using A = Accumulate<T>;
    const T* from = g.data<T>();
    A* to = weight_grad.data<A>();
    // Each thread takes some columns of all positions, and adds the gradients of a row in float64.
    const std::int64_t grain = 16384 / std::max<std::int64_t>(slices.count(), 1);
    parallel_for(width, std::max<std::int64_t>(16, grain),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::vector<double> sums(static_cast<std::size_t>(end));
                   double* const sum = sums.data();
                   for (std::int64_t row = 0, k = 0; k < slices.count(); ++row) {
                     if (k == ends[row]) continue;
                     A* target = to + row * row_stride;
                     for (std::int64_t i = begin; i < end; ++i)
                       sum[i] = double{target[i * column_stride]};
                     for (; k < ends[row]; ++k)
                       for (std::int64_t i = begin; i < end; ++i)
                         sum[i] += double{static_cast<A>(from[sources[k] + i * stride])};
                     for (std::int64_t i = begin; i < end; ++i)
                       target[i * column_stride] = static_cast<A>(sum[i]);
                   }
                 });
  });
}

}  // namespace

extern const Embedding embedding{.gather = gather, .scatter_add = scatter_add};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
