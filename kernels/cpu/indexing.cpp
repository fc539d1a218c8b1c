// Gather along a dimension on the CPU, its gradient, and that of looking up whole rows.
#include "../kernels.h"

#include "../element_types.h"
#include "dim_slices.h"
#include "tensor_iterator.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// Throws if an index is out of range. An expanded dimension repeats its indices, which are read
// once.
void check_indices(const char* op, const Tensor& index, std::int64_t size) {
  Shape shape = index.shape();
  for (int d = 0; d < shape.size(); ++d)
    if (index.strides()[d] == 0 && shape[d] > 0) shape[d] = 1;
  const std::int64_t* data = index.data<std::int64_t>();
  const DimSlices<1> all(shape, {index.strides()});
  all.for_each_in(0, all.count(), [&](const auto& offsets) {
    const std::int64_t i = data[offsets[0]];
    if (i < 0 || i >= size)
      fail<ValueError>("{}: expected indices from 0 to {}, got {}", op, size - 1, i);
  });
}

void gather(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  check_indices(op, index, x.shape()[dim]);
  if (out.numel() == 0) return;
  const Tensor first = first_elements(x, dim, index);
  const std::int64_t step = x.strides()[dim];
  const std::int64_t* indices = index.data<std::int64_t>();
  dispatch_width(size_of(x.dtype()), [&]<class U>() {
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw());
    TensorIterator({&out, &first, &index}).for_each_block([=](const Block& block) {
      const U* source = from + block.offset[1];
      const std::int64_t* at = indices + block.offset[2];
      U* target = to + block.offset[0];
      if (block.stride[2] == 0) {  // one index for the whole block
        source += *at * step;
        if (block.stride[0] == 1 && block.stride[1] == 1) {
          std::copy_n(source, block.count, target);
          return;
        }
        for (std::int64_t i = 0; i < block.count; ++i)
          target[i * block.stride[0]] = source[i * block.stride[1]];
      } else {
        for (std::int64_t i = 0; i < block.count; ++i)
          target[i * block.stride[0]] =
              source[i * block.stride[1] + at[i * block.stride[2]] * step];
      }
    });
  });
}

// Where each slice along the dimension starts in the gradient, the indices and the output.
using Starts = std::array<std::int64_t, 3>;

// The strides along the dimension.
struct Steps {
  std::int64_t length, g, index, out;
};

// Adds the elements of several slices. Neighbouring slices are usually neighbours in memory, so the
// loop over them is the inner one.
template <class T, class A>
void add_slices(const T* g, const std::int64_t* index, A* out, const Steps& steps,
                std::span<const Starts> slices) {
  for (std::int64_t j = 0; j < steps.length; ++j)
    for (const Starts& start : slices)
      out[start[2] + index[start[1] + j * steps.index] * steps.out] +=
          static_cast<A>(g[start[0] + j * steps.g]);
}

void scatter_add(const Tensor& g, int dim, const Tensor& index, const Tensor& out) {
  const Steps steps{index.shape()[dim], g.strides()[dim], index.strides()[dim], out.strides()[dim]};
  const DimSlices<3> slices(without_dim(index.shape(), dim),
                            {without_dim(g.strides(), dim), without_dim(index.strides(), dim),
                             without_dim(out.strides(), dim)});
  const std::int64_t* indices = index.data<std::int64_t>();
  dispatch(RealTypes{}, g.dtype(), "scatter_add", [&]<class T>() {
    dispatch(FloatTypes{}, out.dtype(), "scatter_add", [&]<class A>() {
      const T* from = g.data<T>();
      A* to = out.data<A>();
      // A slice belongs to one thread, because its indices may repeat.
      const std::int64_t grain = 4096 / std::clamp<std::int64_t>(steps.length, 1, 4096);
      parallel_for(slices.count(), grain, [&](std::int64_t begin, std::int64_t end) {
        std::array<Starts, 64> group;
        std::size_t count = 0;
        const auto flush = [&] {
          add_slices(from, indices, to, steps, std::span(group).first(count));
          count = 0;
        };
        slices.for_each_in(begin, end, [&](const Starts& starts) {
          group[count++] = starts;
          if (count == group.size()) flush();
        });
        flush();
      });
    });
  });
}

void add_rows(const Tensor& g, const Tensor& indices, const Tensor& out) {
  const std::int64_t width = out.shape()[1], row_stride = out.strides()[0],
                     column_stride = out.strides()[1];
  const std::int64_t stride = g.strides()[g.rank() - 1];
  const std::int64_t* index = indices.data<std::int64_t>();
  const Strides position_strides = Dims(g.strides().begin(), g.strides().end() - 1);
  const DimSlices<2> slices(indices.shape(), {indices.strides(), position_strides});
  // The offsets of all gradients, sorted by row. Those of a row end before ends[row].
  std::vector<std::int64_t> row_ends(static_cast<std::size_t>(out.shape()[0] + 1)),
      offsets_by_row(static_cast<std::size_t>(slices.count()));
  std::int64_t *const ends = row_ends.data(), *const sources = offsets_by_row.data();
  slices.for_each_in(0, slices.count(), [=](const auto& at) { ++ends[index[at[0]] + 1]; });
  std::partial_sum(row_ends.begin(), row_ends.end(), row_ends.begin());
  slices.for_each_in(0, slices.count(),
                     [=](const auto& at) { sources[ends[index[at[0]]]++] = at[1]; });
  dispatch(RealTypes{}, g.dtype(), "add_rows", [&]<class T>() {
    using A = Accumulate<T>;
    const T* from = g.data<T>();
    A* to = out.data<A>();
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

extern const Indexing indexing{.gather = gather, .scatter_add = scatter_add, .add_rows = add_rows};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
