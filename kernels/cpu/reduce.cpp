// Reductions on the CPU. The work is cut into parts whose number follows from the sizes alone, so
// the result does not depend on the thread count: along a kept dimension where there are many
// outputs, else along a reduced one, with partial results that are combined in order. Each part
// walks its input in the order of memory and adds whole blocks to accumulators in float64 (int64
// for integers).
#include "../reduce.h"

#include "elementwise_loops.h"
#include "lines.h"
#include "operand.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tutti::kernels::cpu {
namespace {

struct Sum {
  template <class C>
  using Accumulator = std::conditional_t<std::is_floating_point_v<C>, double, C>;
  template <class A>
  static constexpr A start = A(0);
  template <class A>
  static A combine(A a, A b) {
    return a + b;
  }
};

template <class A>
bool is_nan(A a) {
  if constexpr (std::is_floating_point_v<A>) return a != a;
  return false;
}

template <bool largest>
struct Extreme {
  template <class C>
  using Accumulator = C;
  template <class A>
  static constexpr A first() {
    if constexpr (std::is_floating_point_v<A>)
      return static_cast<A>(largest ? -INFINITY : INFINITY);
    else return largest ? std::numeric_limits<A>::lowest() : std::numeric_limits<A>::max();
  }
  template <class A>
  static constexpr A start = first<A>();
  template <class A>
  static A combine(A a, A b) {
    return (largest ? b > a : b < a) || is_nan(b) ? b : a;
  }  // NaN wins
};

// One value from a dense run. Several lanes, because floating-point addition does not commute with
// vectorisation.
template <class Op, class A, class C>
A combine_run(const C* x, std::int64_t n) {
  constexpr std::int64_t width = 32;
  std::array<A, width> lanes;
  lanes.fill(Op::template start<A>);
  std::int64_t i = 0;
  for (; i + width <= n; i += width)
    for (std::int64_t j = 0; j < width; ++j)
      lanes[static_cast<std::size_t>(j)] =
          Op::combine(lanes[static_cast<std::size_t>(j)], static_cast<A>(x[i + j]));
  for (std::int64_t j = 0; i < n; ++i, ++j)
    lanes[static_cast<std::size_t>(j)] =
        Op::combine(lanes[static_cast<std::size_t>(j)], static_cast<A>(x[i]));
  for (std::size_t half = width / 2; half > 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) lanes[j] = Op::combine(lanes[j], lanes[j + half]);
  return lanes[0];
}

// Accumulators of the shape of `out`, dense, each at the start value.
template <class Op, class A>
struct Accumulators {
  std::vector<A> values;
  Tensor tensor;

  explicit Accumulators(const Tensor& out)
      : values(static_cast<std::size_t>(out.numel()), Op::template start<A>),
        tensor(std::make_shared<Storage>(values.data(), values.size() * sizeof(A), Device::cpu(),
                                         nullptr),
               out.shape(), dense_strides(out.shape(), out.memory_format()), 0,
               dtype_of<A>::value) {}

  template <class C>
  void add(const Tensor& in) {
    if (in.numel() == 0) return;
    const Source<C> source(in, 0);
    A* const to = values.data();
    Walk({&in, &tensor}).run_serial([=](const Block& block) {
      Buffer<C> buffer;
      const C* x = source.read(block, buffer.data());
      A* a = to + block.at[1];
      const std::int64_t step = block.step[1];
      if (step == 0) *a = Op::combine(*a, combine_run<Op, A>(x, block.count));
      else if (step == 1)
        for (std::int64_t i = 0; i < block.count; ++i)
          a[i] = Op::combine(a[i], static_cast<A>(x[i]));
      else
        for (std::int64_t i = 0; i < block.count; ++i)
          a[i * step] = Op::combine(a[i * step], static_cast<A>(x[i]));
    });
  }
};

// A part of a tensor: entries [begin, end) of dimension `dim`.
Tensor part(const Tensor& x, int dim, std::int64_t begin, std::int64_t end) {
  Shape shape = x.shape();
  shape[dim] = end - begin;
  return x.alias(shape, x.strides(), x.offset() + begin * x.strides()[dim]);
}

// The dimension to cut into `parts`: among those that are kept (or reduced), the outermost in
// memory that is long enough, else the longest; -1 where there is none.
int dimension_to_cut(const Tensor& in, const Tensor& out, bool kept, std::int64_t parts) {
  int best = -1;
  for (int d = 0; d < in.rank(); ++d) {
    const std::int64_t size = in.shape()[d];
    if (size < 2 || (out.shape()[d] != 1) != kept) continue;
    if (best < 0) {
      best = d;
      continue;
    }
    const std::int64_t other = in.shape()[best];
    const bool enough = size >= parts, other_enough = other >= parts;
    if (enough != other_enough ? enough
                               : (enough ? in.strides()[d] > in.strides()[best] : size > other))
      best = d;
  }
  return best;
}

template <class Op, class C>
void reduce_as(const Tensor& in, const Tensor& out) {
  using A = typename Op::template Accumulator<C>;
  constexpr std::int64_t work = 65536;    // elements that are worth a part
  constexpr std::int64_t outputs = 2048;  // accumulators that stay in the L1 cache
  const std::int64_t by_work = std::min<std::int64_t>(in.numel() / work, 64);
  const std::int64_t parts = std::max(by_work, out.numel() / outputs);
  const int kept = out.numel() >= outputs ? dimension_to_cut(in, out, true, parts) : -1;
  if (kept >= 0) {
    const std::int64_t size = in.shape()[kept], count = std::clamp<std::int64_t>(parts, 1, size);
    parallel_for(count,
                 std::max<std::int64_t>(1, count * work / std::max<std::int64_t>(in.numel(), 1)),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t p = first; p < last; ++p) {
                     const std::int64_t begin = size * p / count, end = size * (p + 1) / count;
                     const Tensor to = part(out, kept, begin, end);
                     Accumulators<Op, A> accumulators(to);
                     accumulators.template add<C>(part(in, kept, begin, end));
                     copy(accumulators.tensor, to);
                   }
                 });
    return;
  }
  Accumulators<Op, A> total(out);
  const int reduced = by_work >= 2 ? dimension_to_cut(in, out, false, by_work) : -1;
  if (reduced < 0) {
    total.template add<C>(in);
  } else {
    const std::int64_t size = in.shape()[reduced], count = std::min(by_work, size);
    std::vector<std::vector<A>> partial(static_cast<std::size_t>(count));
    parallel_for(count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        Accumulators<Op, A> accumulators(out);
        accumulators.template add<C>(part(in, reduced, size * p / count, size * (p + 1) / count));
        partial[static_cast<std::size_t>(p)] = std::move(accumulators.values);
      }
    });
    for (const auto& values : partial)
      for (std::size_t i = 0; i < values.size(); ++i)
        total.values[i] = Op::combine(total.values[i], values[i]);
  }
  copy(total.tensor, out);
}

void reduce_all(Reduction op, const Tensor& in, const Tensor& out) {
  if (out.numel() == 0) return;
  dispatch(Types<float, double, BFloat16, std::int64_t>{}, in.dtype(), "reduce", [&]<class T>() {
    using C = Compute<T>;
    switch (op) {
      case Reduction::sum: return reduce_as<Sum, C>(in, out);
      case Reduction::max: return reduce_as<Extreme<true>, C>(in, out);
      case Reduction::min: return reduce_as<Extreme<false>, C>(in, out);
    }
  });
}

void argmax(const Tensor& in, int dim, const Tensor& out) {
  dispatch(Types<float, double, BFloat16, std::int64_t>{}, in.dtype(), "argmax", [&]<class T>() {
    using C = Compute<T>;
    const T* from = in.data<T>();
    std::int64_t* to = out.data<std::int64_t>();
    const std::int64_t size = in.shape()[dim], step = in.strides()[dim];
    const Lines<2> lines(without(in.shape(), dim),
                         {without(in.strides(), dim), without(out.strides(), dim)});
    lines.run(size, [=](const auto& at) {
      std::int64_t best = 0;
      C largest = convert<C>(from[at[0]]);
      for (std::int64_t j = 1; j < size; ++j) {
        const C value = convert<C>(from[at[0] + j * step]);
        if (value > largest || (is_nan(value) && !is_nan(largest))) {  // the first NaN wins
          best = j;
          largest = value;
        }
      }
      to[at[1]] = best;
    });
  });
}

}  // namespace

const Reduce& reduce() {
  static constexpr Reduce table{reduce_all, argmax};
  return table;
}

}  // namespace tutti::kernels::cpu
