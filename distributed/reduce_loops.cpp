// The loops of a reduction over ranks, compiled for each level of processors; data_flow.cpp
// calls them.
#include "data_flow.h"

#include "../core/denormals.h"

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

template <ReduceOp op, class In, class Out>
void reduce(const RankReduction& how, std::span<const void* const> inputs,
            std::span<void* const> outputs, std::int64_t count) {
  using A = Sum<In>;
  A sum[tile];
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t n = std::min(tile, count - begin);
    const In* first = static_cast<const In*>(inputs[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      const In* next = static_cast<const In*>(inputs[r]) + begin;
      for (std::int64_t i = 0; i < n; ++i) merge(op, sum[i], static_cast<A>(next[i]));
    }
    if constexpr (op == ReduceOp::mean)
      for (std::int64_t i = 0; i < n; ++i)
        sum[i] = static_cast<A>(sum[i] / static_cast<A>(how.divisor));
    for (void* output : outputs) {
      Out* to = static_cast<Out*>(output) + begin;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Out>(sum[i]);
    }
  }
}

template <class In, class Out>
void reduce_as(const RankReduction& how, std::span<const void* const> inputs,
               std::span<void* const> outputs, std::int64_t count) {
  switch (how.op) {
    case ReduceOp::sum: return reduce<ReduceOp::sum, In, Out>(how, inputs, outputs, count);
    case ReduceOp::mean: return reduce<ReduceOp::mean, In, Out>(how, inputs, outputs, count);
    case ReduceOp::min: return reduce<ReduceOp::min, In, Out>(how, inputs, outputs, count);
    case ReduceOp::max: return reduce<ReduceOp::max, In, Out>(how, inputs, outputs, count);
  }
}

}  // namespace

void reduce_over_ranks(const RankReduction& how, std::span<const void* const> inputs,
                       std::span<void* const> outputs, std::int64_t count) {
  const bool compares = how.op == ReduceOp::min || how.op == ReduceOp::max;
  const detail::DenormalScope denormals(!compares && detail::flushes_denormals_here());
  if (how.input == how.output)
    return dispatch(AllTypes{}, how.input, "reduce",
                    [&]<class T>() { reduce_as<T, T>(how, inputs, outputs, count); });
  using HalfTypes = Types<BFloat16, Float16>;
  if (how.output == float32)
    return dispatch(HalfTypes{}, how.input, "reduce",
                    [&]<class T>() { reduce_as<T, float>(how, inputs, outputs, count); });
  dispatch(HalfTypes{}, how.output, "reduce",
           [&]<class T>() { reduce_as<float, T>(how, inputs, outputs, count); });
}

}  // namespace tutti::distributed::TUTTI_CPU_LEVEL

#include "../core/end_cpu_level.h"
