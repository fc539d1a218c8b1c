// Gather along a dimension on the CPU, and its gradient.
#include "../kernels.h"

#include "../element_types.h"
#include "dim_slices.h"
#include "tensor_iterator.h"

#include <algorithm>
#include <span>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

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

void scatter_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& out) {
  check_indices(op, index, out.shape()[dim]);
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

}  // namespace

extern const Indexing indexing{.gather = gather, .scatter_add = scatter_add};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
