// This file implements softmax and cross-entropy on CUDA devices. A group of threads reads a slice
// of classes three times: for its largest value, for the sum of exponentials (in float64), and to
// write the result. The host does not read the targets, so a target out of range throws no error;
// its loss and its gradient are NaN.
#include "../softmax_functions.h"

#include "../../core/cuda/stream.h"
#include "dim_slices.h"

#include <cmath>

namespace tutti::kernels::cuda {
namespace {

template <class C>
struct Normalizer {
  C reference;
  double log_sum;  // The logarithm of the sum of exp(x - reference).
};

// All threads of the block must call it. Those without a slice read none, which another thread may
// overwrite.
template <class C, int K>
__device__ C reference_of(const DimSlices& slices, const SlicePointer& x, std::int64_t start,
                          const SliceWork<K>& work) {
  C largest = -C(INFINITY);
  for (std::int64_t i = work.valid ? work.lane : slices.length; i < slices.length;
       i += slices.group)
    largest = larger_logit(x.load<C>(start, i), largest);
  largest = reduce_over_group(largest, slices.group, [](C a, C b) { return larger_logit(b, a); });
  return reference_logit(largest);
}

// All threads of the block must call it.
template <class C, int K>
__device__ Normalizer<C> normalizer_of(const DimSlices& slices, const SlicePointer& x,
                                       std::int64_t start, const SliceWork<K>& work) {
  const C reference = reference_of<C>(slices, x, start, work);
  double sum = 0;
  for (std::int64_t i = work.lane; i < slices.length; i += slices.group)
    sum += static_cast<double>(Math::exp(x.load<C>(start, i) - reference));
  return {reference, log(sum_over_group(sum, slices.group))};
}

template <class C>
__global__ __launch_bounds__(block_threads) void forward_kernel(DimSlices slices, bool logarithm,
                                                                SlicePointer in, SlicePointer out) {
  for_each_slice<2>(slices, [&](const SliceWork<2>& work) {
    const std::int64_t from = work.offsets.at[0], to = work.offsets.at[1];
    const Normalizer<C> normalizer = normalizer_of<C>(slices, in, from, work);
    if (!work.valid) return;
    const C log_sum = static_cast<C>(normalizer.log_sum);
    for (std::int64_t i = work.lane; i < slices.length; i += slices.group) {
      const C y = log_probability(in.load<C>(from, i), normalizer.reference, log_sum);
      out.store(to, i, logarithm ? y : Math::exp(y));
    }
  });
}

template <class C>
__global__ __launch_bounds__(block_threads) void backward_kernel(DimSlices slices, bool logarithm,
                                                                 SlicePointer g, SlicePointer y,
                                                                 SlicePointer out) {
  for_each_slice<3>(slices, [&](const SliceWork<3>& work) {
    const std::int64_t y_start = work.offsets.at[0], g_start = work.offsets.at[1];
    double sum = 0;
    for (std::int64_t i = work.lane; i < slices.length; i += slices.group) {
      const double term = g.load<double>(g_start, i);
      sum += logarithm ? term : term * y.load<double>(y_start, i);
    }
    const C total = static_cast<C>(sum_over_group(sum, slices.group));
    if (!work.valid) return;
    for (std::int64_t i = work.lane; i < slices.length; i += slices.group) {
      const C dy = g.load<C>(g_start, i), value = y.load<C>(y_start, i);
      out.store(
          work.offsets.at[2], i,
          logarithm ? log_softmax_grad<Math>(dy, value, total) : softmax_grad(dy, value, total));
    }
  });
}

template <class C>
struct CrossEntropyOutputs {
  C *losses, *normalizers;
};

template <class C>
__global__ __launch_bounds__(block_threads) void cross_entropy_kernel(DimSlices slices,
                                                                      CrossEntropyRule rule,
                                                                      SlicePointer logits,
                                                                      const std::int64_t* targets,
                                                                      CrossEntropyOutputs<C> out) {
  for_each_slice<4>(slices, [&](const SliceWork<4>& work) {
    const auto& at = work.offsets.at;
    const std::int64_t start = at[0], target = targets[at[1]];
    const Normalizer<C> normalizer = normalizer_of<C>(slices, logits, start, work);
    const auto loss_of = [&](std::int64_t i) {
      return negative_log_likelihood(logits.load<double>(start, i),
                                     static_cast<double>(normalizer.reference), normalizer.log_sum);
    };
    double sum = 0;
    if (rule.label_smoothing != 0) {
      for (std::int64_t i = work.lane; i < slices.length; i += slices.group) sum += loss_of(i);
      sum = sum_over_group(sum, slices.group);
    }
    if (work.lane != 0 || !work.valid) return;
    double loss = 0;
    if (target != rule.ignore_index) {
      const bool in_range = target >= 0 && target < slices.length;
      loss = in_range ? smoothed_loss(rule, loss_of(target), sum, slices.length) : NAN;
    }
    out.losses[at[2]] = static_cast<C>(loss);
    out.normalizers[at[3]] = static_cast<C>(normalizer.log_sum);
  });
}

template <class C>
struct CrossEntropyInputs {
  const C* g;
  SlicePointer logits;
  const std::int64_t* targets;
  const C* normalizers;
};

template <class C>
__global__ __launch_bounds__(block_threads) void cross_entropy_grad_kernel(DimSlices slices,
                                                                           CrossEntropyRule rule,
                                                                           CrossEntropyInputs<C> in,
                                                                           SlicePointer out) {
  const TargetDistribution<C> wanted(rule, slices.length);
  for_each_slice<5>(slices, [&](const SliceWork<5>& work) {
    const auto& at = work.offsets.at;
    const std::int64_t target = in.targets[at[1]];
    const C reference = reference_of<C>(slices, in.logits, at[0], work);
    if (!work.valid) return;
    const bool ignored = target == rule.ignore_index,
               out_of_range = !ignored && (target < 0 || target >= slices.length);
    const C factor = out_of_range ? C(NAN) : in.g[at[2]], log_sum = in.normalizers[at[3]];
    for (std::int64_t i = work.lane; i < slices.length; i += slices.group) {
      C value = C(0);  // An ignored position has gradient 0, even if its logits are NaN.
      if (!ignored) {
        const C probability =
            Math::exp(log_probability(in.logits.template load<C>(at[0], i), reference, log_sum));
        value = factor * (probability - wanted.each - (i == target ? wanted.target : C(0)));
      }
      out.store(at[4], i, value);
    }
  });
}

void forward(const Tensor& in, int dim, bool logarithm, const Tensor& out) {
  if (in.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const SlicedTensor sliced_in(in, dim), sliced_out(out, dim);
  const DimSlices slices(sliced_in, {&sliced_out.starts});
  dispatch(TrainTypes{}, in.dtype(), "softmax", [&]<class T>() {
    tutti::cuda::launch("softmax", forward_kernel<ComputeType<T>>, slices.grid(device), slices,
                        logarithm, SlicePointer(in, dim), SlicePointer(out, dim));
  });
}

void backward(const Tensor& g, const Tensor& y, int dim, bool logarithm, const Tensor& out) {
  if (y.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const SlicedTensor sliced_y(y, dim), sliced_g(g, dim), sliced_out(out, dim);
  const DimSlices slices(sliced_y, {&sliced_g.starts, &sliced_out.starts});
  dispatch(TrainTypes{}, y.dtype(), "softmax", [&]<class T>() {
    tutti::cuda::launch("softmax_grad", backward_kernel<ComputeType<T>>, slices.grid(device),
                        slices, logarithm, SlicePointer(g, dim), SlicePointer(y, dim),
                        SlicePointer(out, dim));
  });
}

void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyRule& rule,
                   const Tensor& losses, const Tensor& normalizers) {
  if (targets.numel() == 0) return;
  const int device = logits.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const DimSlices slices(SlicedTensor(logits, 1), {&targets, &losses, &normalizers});
  dispatch(TrainTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = ComputeType<T>;
    tutti::cuda::launch("cross_entropy", cross_entropy_kernel<C>, slices.grid(device), slices, rule,
                        SlicePointer(logits, 1), targets.data<std::int64_t>(),
                        CrossEntropyOutputs<C>{losses.data<C>(), normalizers.data<C>()});
  });
}

void cross_entropy_grad(const Tensor& g, const Tensor& logits, const Tensor& targets,
                        const CrossEntropyRule& rule, const Tensor& normalizers,
                        const Tensor& out) {
  if (logits.numel() == 0) return;
  const int device = logits.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const SlicedTensor sliced_out(out, 1);
  const DimSlices slices(SlicedTensor(logits, 1), {&targets, &g, &normalizers, &sliced_out.starts});
  dispatch(TrainTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = ComputeType<T>;
    const CrossEntropyInputs<C> in{g.data<C>(), SlicePointer(logits, 1),
                                   targets.data<std::int64_t>(), normalizers.data<C>()};
    tutti::cuda::launch("cross_entropy_grad", cross_entropy_grad_kernel<C>, slices.grid(device),
                        slices, rule, in, SlicePointer(out, 1));
  });
}

}  // namespace

extern const Softmax softmax{.forward = forward,
                             .backward = backward,
                             .cross_entropy = cross_entropy,
                             .cross_entropy_grad = cross_entropy_grad};

}  // namespace tutti::kernels::cuda
