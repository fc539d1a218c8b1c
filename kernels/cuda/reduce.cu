// Reductions: a block of threads takes a tile of outputs and an interval of what is reduced; where
// outputs are few, the intervals are many, and a second launch adds their partial results in order.
// Everything is combined in float64 (int64 for integers), in an order that follows from the shapes
// alone.
#include "../reduce.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "elementwise_loops.h"
#include "lines.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace tutti::kernels::cuda {
namespace {

struct Combine {
  Reduction op;
  template <class A>
  __device__ A operator()(A a, A b) const {
    if (op == Reduction::sum) return a + b;
    return (op == Reduction::max ? b > a : b < a) || b != b ? b : a;  // NaN wins
  }
};

template <class A>
A start_of(Reduction op) {
  using Limits = std::numeric_limits<A>;
  if (op == Reduction::sum) return A(0);
  if constexpr (Limits::has_infinity)
    return op == Reduction::max ? -Limits::infinity() : Limits::infinity();
  return op == Reduction::max ? Limits::lowest() : Limits::max();
}

struct Plan {
  Layout kept, reduced;  // kept: in and out; reduced: in
  int outputs;           // of one block at a time; the other threads share their reductions
  bool across;  // neighbouring threads take neighbouring outputs, else neighbouring elements of one
  std::int64_t interval;  // units that one block reduces
};

template <class A>
__global__ __launch_bounds__(block_threads) void reduce_kernel(Combine combine, Plan plan, A start,
                                                               Operand in, Operand out,
                                                               std::int64_t out_step) {
  __shared__ A partial[block_threads];
  const int thread = static_cast<int>(threadIdx.x), sharers = block_threads / plan.outputs;
  const int output = plan.across ? thread % plan.outputs : thread / sharers;
  const int share = plan.across ? thread / plan.outputs : thread % sharers;
  const int next = plan.across ? plan.outputs : 1;  // how far apart the sharers of an output are
  const std::int64_t begin = plan.interval * blockIdx.y;
  const std::int64_t end = begin + plan.interval < plan.reduced.units ? begin + plan.interval
                                                                      : plan.reduced.units;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * plan.outputs;
       first < plan.kept.units; first += static_cast<std::int64_t>(gridDim.x) * plan.outputs) {
    const bool valid = first + output < plan.kept.units;
    const Place<2> to = plan.kept.place<2>(valid ? first + output : first);
    A total = start;
    for (std::int64_t unit = begin + share; unit < end; unit += sharers) {
      const Place<1> from = plan.reduced.place<1>(unit);
      A values[Layout::pack];
      load(in, to.at[0] + from.at[0], from.count, plan.reduced.constant[0], values);
#pragma unroll
      for (int j = 0; j < Layout::pack; ++j)
        if (j < from.count) total = combine(total, values[j]);
    }
    partial[thread] = total;
    __syncthreads();
    for (int half = sharers / 2; half > 0; half /= 2) {
      if (share < half) partial[thread] = combine(partial[thread], partial[thread + half * next]);
      __syncthreads();
    }
    if (share == 0 && valid) store_one(out, to.at[1] + out_step * blockIdx.y, partial[thread]);
    __syncthreads();  // before the next tile writes
  }
}

// A view of the dimensions of `x` that are, or are not, reduced to size 1 in `out`.
Tensor dimensions(const Tensor& x, const Tensor& in, const Tensor& out, bool reduced) {
  Shape shape;
  Strides strides;
  for (int d = 0; d < in.rank(); ++d)
    if ((out.shape()[d] != in.shape()[d]) == reduced) {
      shape.push_back(x.shape()[d]);
      strides.push_back(x.strides()[d]);
    }
  return x.alias(shape, strides, x.offset());
}

Plan plan_for(const Tensor& in, const Tensor& out) {
  const Tensor kept_in = dimensions(in, in, out, false), kept_out = dimensions(out, in, out, false),
               reduced_in = dimensions(in, in, out, true);
  bool may_pack = true;
  for (const std::int64_t stride : kept_in.strides())
    may_pack = may_pack && stride % Layout::pack == 0;
  const Tensor *kept[] = {&kept_in, &kept_out}, *reduced[] = {&reduced_in};
  Plan plan{Layout(kept, 2, false), Layout(reduced, 1, may_pack), 1, false, 0};
  const std::int64_t outputs = plan.kept.units, units = plan.reduced.units;
  const std::int64_t step = plan.reduced.packed ? 1 : plan.reduced.strides[0][0];
  plan.across = outputs > 1 && (units == 1 || plan.kept.strides[0][0] < step);
  if (plan.across)
    plan.outputs =
        static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min<std::int64_t>(outputs, 32))));
  else
    plan.outputs = units >= 1024 ? 1
                   : units > 32
                       ? 8
                       : 256 / static_cast<int>(std::bit_ceil(static_cast<unsigned>(units)));
  // Enough blocks to fill a device, none with less than eight units for a thread.
  constexpr std::int64_t enough_blocks = 1024, enough_units = 8;
  const std::int64_t tiles = (outputs + plan.outputs - 1) / plan.outputs,
                     sharers = block_threads / plan.outputs;
  const std::int64_t wanted = std::max<std::int64_t>(1, enough_blocks / tiles);
  const std::int64_t intervals =
      std::clamp<std::int64_t>(units / (sharers * enough_units), 1, wanted);
  plan.interval = (units + intervals - 1) / intervals;
  return plan;
}

template <class A>
void reduce_as(Reduction op, const Tensor& in, const Tensor& out) {
  const Plan plan = plan_for(in, out);
  const std::int64_t outputs = plan.kept.units,
                     intervals = (plan.reduced.units + plan.interval - 1) / plan.interval;
  const std::int64_t tiles = (outputs + plan.outputs - 1) / plan.outputs;
  const tutti::cuda::Grid grid{
      .blocks = dim3(static_cast<unsigned>(std::min<std::int64_t>(tiles, 1 << 20)),
                     static_cast<unsigned>(intervals)),
      .threads = block_threads};
  if (intervals == 1) {
    tutti::cuda::launch("reduce", reduce_kernel<A>, grid, Combine{op}, plan, start_of<A>(op),
                        Operand(in), Operand(out), 0);
    return;
  }
  // Partial results: one dense copy of the output's shape for each interval, outermost.
  Shape shape = out.shape();
  shape.insert(0, intervals);
  const Tensor partial = empty(shape, {dtype_of<A>::value, in.device()}),
               first = partial.select(0, 0);
  Plan to_partial = plan;
  const Tensor kept_in = dimensions(in, in, out, false),
               kept_partial = dimensions(first, in, out, false);
  const Tensor* kept[] = {&kept_in, &kept_partial};
  to_partial.kept = Layout(kept, 2, false);
  tutti::cuda::launch("reduce", reduce_kernel<A>, grid, Combine{op}, to_partial, start_of<A>(op),
                      Operand(in), Operand(partial), out.numel());
  Shape one = shape;
  one[0] = 1;
  Strides strides = out.strides();
  strides.insert(0, 0);
  reduce_as<A>(op, partial, out.alias(one, strides, out.offset()));
}

void reduce_all(Reduction op, const Tensor& in, const Tensor& out) {
  if (out.numel() == 0) return;
  if (in.numel() == 0) return fill(out, 0);
  const tutti::cuda::DeviceScope scope(out.device().index());
  if (is_floating(in.dtype())) reduce_as<double>(op, in, out);
  else if (in.dtype() == int64) reduce_as<std::int64_t>(op, in, out);
  else
    fail<DTypeError>("reduce: cannot compute in {} on this device; convert with .to(dtype)",
                     to_string(in.dtype()));
}

template <class A>
struct Candidate {
  A value;
  std::int64_t index;
};

template <class A>
__device__ bool before(const Candidate<A>& a, const Candidate<A>& b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan || b_nan) return a_nan && (!b_nan || a.index < b.index);  // the first NaN wins
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

template <class A>
__global__ __launch_bounds__(block_threads) void argmax_kernel(Lines lines, Operand in,
                                                               std::int64_t step,
                                                               std::int64_t* out) {
  __shared__ Candidate<A> candidates[block_threads];
  const int thread = static_cast<int>(threadIdx.x);
  for_lines<2>(lines, [&](const Place<2>& place, int lane, bool valid) {
    Candidate<A> best{A(0), lines.length};  // none yet
    for (std::int64_t i = lane; i < lines.length; i += lines.group) {
      const Candidate<A> here{load_one<A>(in, place.at[0] + i * step), i};
      if (i == lane || before(here, best)) best = here;
    }
    candidates[thread] = best;
    __syncthreads();
    for (int half = lines.group / 2; half > 0; half /= 2) {
      if (lane < half && candidates[thread + half].index < lines.length &&
          (candidates[thread].index >= lines.length ||
           before(candidates[thread + half], candidates[thread])))
        candidates[thread] = candidates[thread + half];
      __syncthreads();
    }
    if (lane == 0 && valid) out[place.at[1]] = candidates[thread].index;
    __syncthreads();
  });
}

void argmax(const Tensor& in, int dim, const Tensor& out) {
  if (out.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor in_starts = starts_of(in, dim), out_starts = starts_of(out, dim);
  const Lines lines(in, dim, in_starts, {&out_starts});
  const std::int64_t step = in.strides()[dim];
  if (is_floating(in.dtype()))
    tutti::cuda::launch("argmax", argmax_kernel<double>, lines.grid(device), lines, Operand(in),
                        step, out.data<std::int64_t>());
  else
    tutti::cuda::launch("argmax", argmax_kernel<std::int64_t>, lines.grid(device), lines,
                        Operand(in), step, out.data<std::int64_t>());
}

}  // namespace

const Reduce& reduce() {
  static constexpr Reduce table{reduce_all, argmax};
  return table;
}

}  // namespace tutti::kernels::cuda
