// The loops of a reduction over ranks, compiled for each level of processors; reduce.cpp calls
// them.
#include "collective.h"

#include <algorithm>

#include "../core/begin_cpu_level.h"

namespace tutti::distributed::TUTTI_CPU_LEVEL {
namespace {

// In elements: the accumulator stays in the first-level cache.
constexpr std::int64_t tile = 1024;

// Integers are summed as they are, 16-bit floating elements in float.
template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, T, Accumulate<T>>;

template <class A>
void merge(ReduceOp op, A& into, A value) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean: into = static_cast<A>(into + value); break;
    case ReduceOp::min: into = value < into || value != value ? value : into; break;
    case ReduceOp::max: into = value > into || value != value ? value : into; break;
  }
}

template <ReduceOp op, class T>
void reduce(std::span<const void* const> inputs, std::span<void* const> outputs,
            std::int64_t count) {
  using A = Sum<T>;
  A sum[tile];
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t n = std::min(tile, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      const T* next = static_cast<const T*>(inputs[r]) + begin;
      for (std::int64_t i = 0; i < n; ++i) merge(op, sum[i], static_cast<A>(next[i]));
    }
    if constexpr (op == ReduceOp::mean)
      for (std::int64_t i = 0; i < n; ++i)
        sum[i] = static_cast<A>(sum[i] / static_cast<A>(inputs.size()));
    for (void* output : outputs) {
      T* to = static_cast<T*>(output) + begin;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sum[i]);
    }
  }
}

}  // namespace

void reduce_in_rank_order(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                          std::span<void* const> outputs, std::int64_t count) {
  dispatch(AllTypes{}, dtype, "reduce", [&]<class T>() {
    switch (op) {
      case ReduceOp::sum: return reduce<ReduceOp::sum, T>(inputs, outputs, count);
      case ReduceOp::mean: return reduce<ReduceOp::mean, T>(inputs, outputs, count);
      case ReduceOp::min: return reduce<ReduceOp::min, T>(inputs, outputs, count);
      case ReduceOp::max: return reduce<ReduceOp::max, T>(inputs, outputs, count);
    }
  });
}

}  // namespace tutti::distributed::TUTTI_CPU_LEVEL

#include "../core/end_cpu_level.h"
