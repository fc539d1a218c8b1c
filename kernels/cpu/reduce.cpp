// This file implements reductions on the CPU. The work is divided into parts, whose number depends
// only on the sizes, so that the result does not depend on the thread count. If there are many
// outputs, each part computes some of them; otherwise each part reduces some of the input, and the
// partial results are combined in order. A part visits its input in memory order and adds whole
// blocks to accumulators, which are float64 for sums of floating-point numbers, else the compute
// type.
#include "../kernels.h"

#include "../../core/parallel.h"
#include "../../core/thread_owned.h"
#include "dim_slices.h"
#include "tensor_iterator.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tutti::kernels::cpu {
namespace {

// Moves the indices of the `k` largest values to the front of `indices`, in their order. It is
// compiled for the baseline, because std::partial_sort is, which could not inline the comparison
// otherwise.
template <class C, class T>
void select_largest(const T* values, std::int64_t stride, std::vector<std::int64_t>& indices,
                    std::int64_t k) {
  std::iota(indices.begin(), indices.end(), 0);
  std::partial_sort(
      indices.begin(), indices.begin() + k, indices.end(), [=](std::int64_t i, std::int64_t j) {
        const C a = convert<C>(values[i * stride]), b = convert<C>(values[j * stride]);
        return is_larger(a, b) || (i < j && !is_larger(b, a));
      });
}

}  // namespace
}  // namespace tutti::kernels::cpu

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

using ReducedTypes = Types<float, double, BFloat16, std::int64_t, std::uint8_t, bool>;

template <Reduction op, class C>
using Accumulator =
    std::conditional_t<op == Reduction::sum && std::is_floating_point_v<C>, double, C>;

// Reduces a dense run to one value. The separate lanes let the compiler vectorise the loop, because
// it must not reorder floating-point additions by itself.
template <Reduction op, class A, class C>
A reduce_run(const C* x, std::int64_t n) {
  constexpr std::int64_t width = 32;
  std::array<A, width> lanes;
  lanes.fill(identity_of<A>(op));
  std::int64_t i = 0;
  for (; i + width <= n; i += width)
    for (std::int64_t j = 0; j < width; ++j)
      lanes[static_cast<std::size_t>(j)] =
          combine(op, lanes[static_cast<std::size_t>(j)], static_cast<A>(x[i + j]));
  for (std::int64_t j = 0; i < n; ++i, ++j)
    lanes[static_cast<std::size_t>(j)] =
        combine(op, lanes[static_cast<std::size_t>(j)], static_cast<A>(x[i]));
  for (std::size_t half = width / 2; half > 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) lanes[j] = combine(op, lanes[j], lanes[j + half]);
  return lanes[0];
}

// Dense accumulators of the shape of `out`, each at the identity of the reduction.
template <Reduction op, class C>
struct Accumulators {
  using A = Accumulator<op, C>;
  std::vector<A> values;
  Tensor tensor;  // A tensor that views the values.

  explicit Accumulators(const Tensor& out)
      : values(static_cast<std::size_t>(out.numel()), identity_of<A>(op)),
        tensor(std::make_shared<Storage>(values.data(), values.size() * sizeof(A), Device::cpu(),
                                         nullptr),
               out.shape(), dense_strides(out.shape(), out.memory_format()), 0,
               dtype_of<A>::value) {}

  void add(const Tensor& in) {
    if (in.numel() == 0) return;
    const BlockReader<C> reader(in, 0);
    A* const to = values.data();
    TensorIterator({&in, &tensor}).for_each_block_serially([=](const Block& block) {
      BlockBuffer<C> buffer;
      const C* x = reader.read(block, buffer.data());
      A* a = to + block.offset[1];
      const std::int64_t stride = block.stride[1];
      if (stride == 0) *a = combine(op, *a, reduce_run<op, A>(x, block.count));
      else if (stride == 1)
        for (std::int64_t i = 0; i < block.count; ++i)
          a[i] = combine(op, a[i], static_cast<A>(x[i]));
      else
        for (std::int64_t i = 0; i < block.count; ++i)
          a[i * stride] = combine(op, a[i * stride], static_cast<A>(x[i]));
    });
  }
};

// A view of entries [begin, end) of dimension `dim`.
Tensor narrow(const Tensor& x, int dim, std::int64_t begin, std::int64_t end) {
  Shape shape = x.shape();
  shape[dim] = end - begin;
  return x.alias(shape, x.strides(), x.offset() + begin * x.strides()[dim]);
}

// Returns the dimension to divide into `parts`, among the kept ones if `kept`, else among the
// reduced ones. It is the outermost in memory of the dimensions that are long enough, or the
// longest if none is; -1 if no dimension has more than one entry.
int dimension_to_cut(const Tensor& in, const Tensor& out, bool kept, std::int64_t parts) {
  int best = -1;
  for (int d = 0; d < in.rank(); ++d) {
    const std::int64_t size = in.shape()[d];
    if (size < 2 || (out.shape()[d] != 1) != kept) continue;
    if (best < 0) {
      best = d;
      continue;
    }
    const std::int64_t best_size = in.shape()[best];
    const bool enough = size >= parts, best_enough = best_size >= parts;
    const bool is_outer = in.strides()[d] > in.strides()[best];
    if (enough != best_enough ? enough : (enough ? is_outer : size > best_size)) best = d;
  }
  return best;
}

constexpr std::int64_t elements_per_part = 65536;
constexpr std::int64_t outputs_per_part = 2048;  // Their accumulators fit into the L1 cache.

// Cuts dimension `dim`, which is kept, into at most `parts`. Each part computes its own outputs.
template <Reduction op, class C>
void reduce_by_outputs(const Tensor& in, const Tensor& out, int dim, std::int64_t parts) {
  const std::int64_t size = in.shape()[dim], count = std::clamp<std::int64_t>(parts, 1, size);
  const std::int64_t grain = count * elements_per_part / std::max<std::int64_t>(in.numel(), 1);
  parallel_for(count, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      const std::int64_t begin = size * p / count, end = size * (p + 1) / count;
      const Tensor part = narrow(out, dim, begin, end);
      Accumulators<op, C> accumulators(part);
      accumulators.add(narrow(in, dim, begin, end));
      table().elementwise.copy(accumulators.tensor, part);
    }
  });
}

// Cuts dimension `dim`, which is reduced, into at most `parts`, and combines their results in
// order.
template <Reduction op, class C>
void reduce_by_inputs(const Tensor& in, const Tensor& out, int dim, std::int64_t parts) {
  using A = Accumulator<op, C>;
  const std::int64_t size = in.shape()[dim], count = std::min(parts, size);
  std::vector<std::vector<A>> partial(static_cast<std::size_t>(count));
  parallel_for(count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      Accumulators<op, C> accumulators(out);
      accumulators.add(narrow(in, dim, size * p / count, size * (p + 1) / count));
      partial[static_cast<std::size_t>(p)] = std::move(accumulators.values);
    }
  });
  Accumulators<op, C> total(out);
  for (const auto& values : partial)
    for (std::size_t i = 0; i < values.size(); ++i)
      total.values[i] = combine(op, total.values[i], values[i]);
  table().elementwise.copy(total.tensor, out);
}

template <Reduction op, class C>
void reduce_as(const Tensor& in, const Tensor& out) {
  const std::int64_t by_elements = std::min<std::int64_t>(in.numel() / elements_per_part, 64);
  const std::int64_t parts = std::max(by_elements, out.numel() / outputs_per_part);
  const int kept = out.numel() >= outputs_per_part ? dimension_to_cut(in, out, true, parts) : -1;
  if (kept >= 0) return reduce_by_outputs<op, C>(in, out, kept, parts);
  const int reduced = by_elements >= 2 ? dimension_to_cut(in, out, false, by_elements) : -1;
  if (reduced >= 0) return reduce_by_inputs<op, C>(in, out, reduced, by_elements);
  Accumulators<op, C> total(out);
  total.add(in);
  table().elementwise.copy(total.tensor, out);
}

void reduce_tensor(Reduction op, const Tensor& in, const Tensor& out) {
  if (out.numel() == 0) return;
  const ScopedValue keeps(tutti::detail::keeps_denormals,
                          tutti::detail::keeps_denormals || op != Reduction::sum);
  const tutti::detail::DenormalScope denormals;
  dispatch(ReducedTypes{}, in.dtype(), "reduce", [&]<class T>() {
    using C = ComputeType<T>;
    switch (op) {
      case Reduction::sum: return reduce_as<Reduction::sum, C>(in, out);
      case Reduction::max: return reduce_as<Reduction::max, C>(in, out);
      case Reduction::min: return reduce_as<Reduction::min, C>(in, out);
    }
  });
}

// Returns the index of the first largest of `size` values.
template <class C, class T>
std::int64_t first_largest(const T* values, std::int64_t size, std::int64_t stride) {
  std::int64_t best = 0;
  C largest = convert<C>(values[0]);
  for (std::int64_t j = 1; j < size; ++j) {
    const C value = convert<C>(values[j * stride]);
    if (is_larger(value, largest)) {
      best = j;
      largest = value;
    }
  }
  return best;
}

void topk(const Tensor& in, int dim, const Tensor& out) {
  const std::int64_t size = in.shape()[dim], stride = in.strides()[dim], k = out.shape()[dim],
                     out_stride = out.strides()[dim];
  if (k == 0) return;
  const ScopedValue keeps(tutti::detail::keeps_denormals, true);
  dispatch(ReducedTypes{}, in.dtype(), "topk", [&]<class T>() {
    using C = ComputeType<T>;
    const T* from = in.data<T>();
    std::int64_t* to = out.data<std::int64_t>();
    const DimSlices<2> slices(without_dim(in.shape(), dim),
                              {without_dim(in.strides(), dim), without_dim(out.strides(), dim)});
    slices.for_each(size, [=](const auto& offsets) {
      if (k == 1) {
        to[offsets[1]] = first_largest<C>(from + offsets[0], size, stride);
        return;
      }
      auto& indices = tutti::detail::of_thread<std::vector<std::int64_t>>();
      indices.resize(static_cast<std::size_t>(size));
      select_largest<C>(from + offsets[0], stride, indices, k);
      for (std::int64_t j = 0; j < k; ++j)
        to[offsets[1] + j * out_stride] = indices[static_cast<std::size_t>(j)];
    });
  });
}

}  // namespace

extern const Reduce reduce{.reduce = reduce_tensor, .topk = topk};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
