// This file implements reductions on CUDA devices. Each block reduces an interval of the input for
// a tile of outputs. If there are few outputs, the input is divided into many intervals, and a
// second launch combines their partial results in order. All values are combined in float64 (int64
// for integers), in an order that depends only on the shapes.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "dim_slices.h"

#include <algorithm>
#include <bit>

namespace tutti::kernels::cuda {
namespace {

// How a reduction is divided among the threads of a launch.
struct ReductionLaunch {
  OffsetCalculator kept;     // One unit is one output. The tensors are the input and the output.
  OffsetCalculator reduced;  // The units are reduced for each output. The tensor is the input.
  int outputs;               // The number of outputs that a block computes at a time.
  // If true, neighbouring threads reduce into neighbouring outputs, else into the same output.
  bool across;
  std::int64_t interval;         // The number of units of `reduced` that one block reduces.
  std::int64_t output_step = 0;  // The stride between the results of two intervals.

  std::int64_t tiles() const { return (kept.units + outputs - 1) / outputs; }
  std::int64_t intervals() const { return (reduced.units + interval - 1) / interval; }
  tutti::cuda::Grid grid() const {
    const auto x = static_cast<unsigned>(std::min<std::int64_t>(tiles(), 1 << 20));
    return {.blocks = dim3(x, static_cast<unsigned>(intervals())), .threads = block_threads};
  }
};

template <class A>
__global__ __launch_bounds__(block_threads) void reduce_kernel(Reduction op, ReductionLaunch launch,
                                                               A identity, TypedPointer in,
                                                               TypedPointer out) {
  __shared__ A partial[block_threads];
  const int thread = static_cast<int>(threadIdx.x), sharers = block_threads / launch.outputs;
  const int output = launch.across ? thread % launch.outputs : thread / sharers;
  const int share = launch.across ? thread / launch.outputs : thread % sharers;
  // The thread index step between neighbouring threads of the same output.
  const int next = launch.across ? launch.outputs : 1;
  const std::int64_t begin = launch.interval * blockIdx.y;
  const std::int64_t end = begin + launch.interval < launch.reduced.units ? begin + launch.interval
                                                                          : launch.reduced.units;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * launch.outputs;
       first < launch.kept.units; first += static_cast<std::int64_t>(gridDim.x) * launch.outputs) {
    const bool valid = first + output < launch.kept.units;
    const Offsets<2> to = launch.kept.offsets<2>(valid ? first + output : first);
    A total = identity;
    for (std::int64_t unit = begin + share; unit < end; unit += sharers) {
      const Offsets<1> from = launch.reduced.offsets<1>(unit);
      UnitValues<A> values;
      load(in, to.at[0] + from.at[0], from.count, launch.reduced.constant[0], values);
#pragma unroll
      for (int j = 0; j < OffsetCalculator::vector_size; ++j)
        if (j < from.count) total = combine(op, total, values[j]);
    }
    partial[thread] = total;
    __syncthreads();
    for (int half = sharers / 2; half > 0; half /= 2) {
      if (share < half)
        partial[thread] = combine(op, partial[thread], partial[thread + half * next]);
      __syncthreads();
    }
    if (share == 0 && valid)
      store_one(out, to.at[1] + launch.output_step * blockIdx.y, partial[thread]);
    // The next tile overwrites the thread's own number only, which no other thread reads since the
    // last barrier.
  }
}

// Returns a view of the dimensions of `x` that `out` reduces to size 1, or of those that it keeps.
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

OffsetCalculator kept_offsets(const Tensor& in, const Tensor& out, const Tensor& result) {
  const Tensor from = dimensions(in, in, out, false), to = dimensions(result, in, out, false);
  const Tensor* tensors[] = {&from, &to};
  return OffsetCalculator(tensors, false);
}

OffsetCalculator reduced_offsets(const Tensor& in, const Tensor& out) {
  bool may_vectorize = true;
  for (const std::int64_t stride : dimensions(in, in, out, false).strides())
    may_vectorize = may_vectorize && stride % OffsetCalculator::vector_size == 0;
  const Tensor reduced = dimensions(in, in, out, true);
  const Tensor* tensors[] = {&reduced};
  return OffsetCalculator(tensors, may_vectorize);
}

int round_up_to_power_of_two(std::int64_t n) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
}

ReductionLaunch launch_for(const Tensor& in, const Tensor& out) {
  ReductionLaunch launch{kept_offsets(in, out, out), reduced_offsets(in, out), 1, false, 0};
  const std::int64_t outputs = launch.kept.units, units = launch.reduced.units;
  const std::int64_t step = launch.reduced.vectorized ? 1 : launch.reduced.strides[0][0];
  launch.across = outputs > 1 && (units == 1 || launch.kept.strides[0][0] < step);
  if (launch.across) launch.outputs = round_up_to_power_of_two(std::min<std::int64_t>(outputs, 32));
  else if (units <= 32) launch.outputs = block_threads / round_up_to_power_of_two(units);
  else launch.outputs = units < 1024 ? 8 : 1;
  // The launch has enough blocks to fill a device, but each thread has at least eight units.
  constexpr std::int64_t enough_blocks = 1024, enough_units = 8;
  const std::int64_t sharers = block_threads / launch.outputs;
  const std::int64_t wanted = std::max<std::int64_t>(1, enough_blocks / launch.tiles());
  const std::int64_t intervals =
      std::clamp<std::int64_t>(units / (sharers * enough_units), 1, wanted);
  launch.interval = (units + intervals - 1) / intervals;
  return launch;
}

template <class A>
void reduce_as(Reduction op, const Tensor& in, const Tensor& out) {
  const auto run = [&](const ReductionLaunch& launch, const Tensor& result) {
    tutti::cuda::launch("reduce", reduce_kernel<A>, launch.grid(), op, launch, identity_of<A>(op),
                        TypedPointer(in), TypedPointer(result));
  };
  ReductionLaunch launch = launch_for(in, out);
  if (launch.intervals() == 1) return run(launch, out);
  // Each interval has a dense tensor of the output's shape for its partial results.
  Shape shape = out.shape();
  shape.insert(0, launch.intervals());
  const Tensor partial = empty(shape, {dtype_of<A>::value, in.device()});
  launch.kept = kept_offsets(in, out, partial.select(0, 0));
  launch.output_step = out.numel();
  run(launch, partial);
  shape[0] = 1;
  Strides strides = out.strides();
  strides.insert(0, 0);
  reduce_as<A>(op, partial, out.alias(shape, strides, out.offset()));
}

void reduce_tensor(Reduction op, const Tensor& in, const Tensor& out) {
  if (out.numel() == 0) return;
  if (in.numel() == 0) return table().elementwise.fill(out, 0);
  const tutti::cuda::DeviceScope scope(out.device().index());
  is_floating(in.dtype()) ? reduce_as<double>(op, in, out) : reduce_as<std::int64_t>(op, in, out);
}

template <class A>
struct Candidate {
  A value;
  std::int64_t index;
};

// Returns whether `a` precedes `b` as the maximum: it is larger, or as large and earlier.
template <class A>
__device__ bool is_better(const Candidate<A>& a, const Candidate<A>& b) {
  if (is_larger(a.value, b.value)) return true;
  return !is_larger(b.value, a.value) && a.index < b.index;
}

// Each round finds the best of the candidates that the one of the round before precedes, so the
// work grows with `k`: this is for few elements of each slice.
template <class A>
__global__ __launch_bounds__(block_threads) void topk_kernel(DimSlices slices, SlicePointer in,
                                                             std::int64_t k,
                                                             std::int64_t out_stride,
                                                             std::int64_t* out) {
  __shared__ Candidate<A> candidates[block_threads];
  const int thread = static_cast<int>(threadIdx.x);
  for_each_slice<2>(slices, [&](const SliceWork<2>& work) {
    const Candidate<A> none{A(0), slices.length};
    Candidate<A> last = none;
    for (std::int64_t round = 0; round < k; ++round) {
      Candidate<A> best = none;
      for (std::int64_t i = work.lane; i < slices.length; i += slices.group) {
        const Candidate<A> here{in.load<A>(work.offsets.at[0], i), i};
        if (round > 0 && !is_better(last, here)) continue;  // taken in an earlier round
        if (best.index == slices.length || is_better(here, best)) best = here;
      }
      candidates[thread] = best;
      __syncthreads();
      for (int half = slices.group / 2; half > 0; half /= 2) {
        if (work.lane < half && candidates[thread + half].index < slices.length &&
            (candidates[thread].index >= slices.length ||
             is_better(candidates[thread + half], candidates[thread])))
          candidates[thread] = candidates[thread + half];
        __syncthreads();
      }
      last = candidates[thread - work.lane];
      if (work.lane == 0 && work.valid) out[work.offsets.at[1] + round * out_stride] = last.index;
      __syncthreads();
    }
  });
}

void topk(const Tensor& in, int dim, const Tensor& out) {
  if (out.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const SlicedTensor sliced_out(out, dim);
  const DimSlices slices(SlicedTensor(in, dim), {&sliced_out.starts});
  const auto run = [&](auto kernel) {
    tutti::cuda::launch("topk", kernel, slices.grid(device), slices, SlicePointer(in, dim),
                        sliced_out.length, sliced_out.stride, out.data<std::int64_t>());
  };
  is_floating(in.dtype()) ? run(topk_kernel<double>) : run(topk_kernel<std::int64_t>);
}

}  // namespace

extern const Reduce reduce{.reduce = reduce_tensor, .topk = topk};

}  // namespace tutti::kernels::cuda
