// Softmax and cross-entropy: a group of threads for each line of classes, which it reads for its
// largest value, again for the sum of exponentials (float64), and once more to write. Nothing is
// thrown for a target out of range, which the host cannot see: its loss and its gradient are NaN.
#include "../softmax.h"

#include "../../core/cuda/stream.h"
#include "lines.h"

#include <cmath>

namespace tutti::kernels::cuda {
namespace {

template <class C>
struct Normalizer {
  C largest;       // 0 for a line of -inf only, so that its logarithms are -inf
  double log_sum;  // of exp(x - largest)
};

// Called by all threads of the block.
template <class C>
__device__ Normalizer<C> normalizer_of(const Lines& lines, const Operand& in, std::int64_t at,
                                       std::int64_t step, int lane) {
  const C lowest = -C(INFINITY);
  C largest = lowest;
  for (std::int64_t i = lane; i < lines.length; i += lines.group) {
    const C x = load_one<C>(in, at + i * step);
    largest = x > largest ? x : largest;  // NaN comes out of the exponentials
  }
  largest = over_group(largest, lines.group, Larger{});
  if (largest == lowest) largest = C(0);
  double sum = 0;
  for (std::int64_t i = lane; i < lines.length; i += lines.group)
    sum += static_cast<double>(exp(load_one<C>(in, at + i * step) - largest));
  return {largest, log(over_group(sum, lines.group, Sum{}))};
}

template <class C>
__global__ __launch_bounds__(block_threads) void forward_kernel(Lines lines, bool logarithm,
                                                                Operand in, std::int64_t in_step,
                                                                Operand out,
                                                                std::int64_t out_step) {
  for_lines<2>(lines, [&](const Place<2>& place, int lane, bool valid) {
    const Normalizer<C> normalizer = normalizer_of<C>(lines, in, place.at[0], in_step, lane);
    if (!valid) return;
    const C shift = static_cast<C>(normalizer.log_sum);
    for (std::int64_t i = lane; i < lines.length; i += lines.group) {
      const C y = load_one<C>(in, place.at[0] + i * in_step) - normalizer.largest - shift;
      store_one(out, place.at[1] + i * out_step, logarithm ? y : static_cast<C>(exp(y)));
    }
  });
}

template <class C>
__global__ __launch_bounds__(block_threads) void backward_kernel(Lines lines, bool logarithm,
                                                                 Operand g, std::int64_t g_step,
                                                                 Operand y, std::int64_t y_step,
                                                                 Operand out,
                                                                 std::int64_t out_step) {
  for_lines<3>(lines, [&](const Place<3>& place, int lane, bool valid) {
    double sum = 0;
    for (std::int64_t i = lane; i < lines.length; i += lines.group) {
      const double term = load_one<double>(g, place.at[1] + i * g_step);
      sum += logarithm ? term : term * load_one<double>(y, place.at[0] + i * y_step);
    }
    const C total = static_cast<C>(over_group(sum, lines.group, Sum{}));
    if (!valid) return;
    for (std::int64_t i = lane; i < lines.length; i += lines.group) {
      const C dy = load_one<C>(g, place.at[1] + i * g_step),
              value = load_one<C>(y, place.at[0] + i * y_step);
      store_one(out, place.at[2] + i * out_step,
                logarithm ? dy - static_cast<C>(exp(value)) * total : value * (dy - total));
    }
  });
}

template <class C>
__global__ __launch_bounds__(block_threads) void cross_entropy_kernel(
    Lines lines, CrossEntropyRule rule, Operand logits, std::int64_t step,
    const std::int64_t* targets, C* losses, C* normalizers) {
  for_lines<4>(lines, [&](const Place<4>& place, int lane, bool valid) {
    const std::int64_t at = place.at[0], target = targets[place.at[1]];
    const Normalizer<C> normalizer = normalizer_of<C>(lines, logits, at, step, lane);
    // Relative to the largest logit: log sum exp(x) itself would cancel where logits are large.
    const auto nll = [&](std::int64_t i) {
      return static_cast<double>(normalizer.largest) - load_one<double>(logits, at + i * step) +
             normalizer.log_sum;
    };
    double all = 0;
    if (rule.label_smoothing != 0) {
      for (std::int64_t i = lane; i < lines.length; i += lines.group) all += nll(i);
      all = over_group(all, lines.group, Sum{});
    }
    if (lane != 0 || !valid) return;
    double loss = 0;
    if (target != rule.ignore_index) {
      if (target >= 0 && target < lines.length)
        loss = (1 - rule.label_smoothing) * nll(target) +
               (rule.label_smoothing != 0
                    ? rule.label_smoothing / static_cast<double>(lines.length) * all
                    : 0);
      else loss = NAN;
    }
    losses[place.at[2]] = static_cast<C>(loss);
    normalizers[place.at[3]] = static_cast<C>(normalizer.log_sum);
  });
}

template <class C>
__global__ __launch_bounds__(block_threads) void cross_entropy_grad_kernel(
    Lines lines, CrossEntropyRule rule, const C* g, Operand logits, std::int64_t step,
    const std::int64_t* targets, const C* normalizers, Operand out, std::int64_t out_step) {
  const C even = static_cast<C>(rule.label_smoothing / static_cast<double>(lines.length));
  const C hit = static_cast<C>(1 - rule.label_smoothing);
  for_lines<5>(lines, [&](const Place<5>& place, int lane, bool valid) {
    const std::int64_t at = place.at[0], target = targets[place.at[1]];
    const C lowest = -C(INFINITY);
    C largest = lowest;
    for (std::int64_t i = lane; i < lines.length; i += lines.group) {
      const C x = load_one<C>(logits, at + i * step);
      largest = x > largest ? x : largest;
    }
    largest = over_group(largest, lines.group, Larger{});
    if (largest == lowest) largest = C(0);
    if (!valid) return;
    const bool ignored = target == rule.ignore_index,
               absurd = !ignored && (target < 0 || target >= lines.length);
    const C factor = absurd ? C(NAN) : g[place.at[2]], shift = normalizers[place.at[3]];
    for (std::int64_t i = lane; i < lines.length; i += lines.group) {
      C value = C(0);  // where ignored, whatever the logits are
      if (!ignored) {
        const C probability = exp(load_one<C>(logits, at + i * step) - largest - shift);
        value = factor * (probability - even - (i == target ? hit : C(0)));
      }
      store_one(out, place.at[4] + i * out_step, value);
    }
  });
}

void forward(const Tensor& in, int dim, bool logarithm, const Tensor& out) {
  if (in.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor in_starts = starts_of(in, dim), out_starts = starts_of(out, dim);
  const Lines lines(in, dim, in_starts, {&out_starts});
  dispatch(TrainTypes{}, in.dtype(), "softmax", [&]<class T>() {
    tutti::cuda::launch("softmax", forward_kernel<Compute<T>>, lines.grid(device), lines, logarithm,
                        Operand(in), in.strides()[dim], Operand(out), out.strides()[dim]);
  });
}

void backward(const Tensor& g, const Tensor& y, int dim, bool logarithm, const Tensor& out) {
  if (y.numel() == 0) return;
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor y_starts = starts_of(y, dim), g_starts = starts_of(g, dim),
               out_starts = starts_of(out, dim);
  const Lines lines(y, dim, y_starts, {&g_starts, &out_starts});
  dispatch(TrainTypes{}, y.dtype(), "softmax", [&]<class T>() {
    tutti::cuda::launch("softmax_grad", backward_kernel<Compute<T>>, lines.grid(device), lines,
                        logarithm, Operand(g), g.strides()[dim], Operand(y), y.strides()[dim],
                        Operand(out), out.strides()[dim]);
  });
}

void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyRule& rule,
                   const Tensor& losses, const Tensor& normalizers) {
  if (targets.numel() == 0) return;
  const int device = logits.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor starts = starts_of(logits, 1);
  const Lines lines(logits, 1, starts, {&targets, &losses, &normalizers});
  dispatch(TrainTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = Compute<T>;
    tutti::cuda::launch("cross_entropy", cross_entropy_kernel<C>, lines.grid(device), lines, rule,
                        Operand(logits), logits.strides()[1], targets.data<std::int64_t>(),
                        losses.data<C>(), normalizers.data<C>());
  });
}

void cross_entropy_grad(const Tensor& g, const Tensor& logits, const Tensor& targets,
                        const CrossEntropyRule& rule, const Tensor& normalizers,
                        const Tensor& out) {
  if (logits.numel() == 0) return;
  const int device = logits.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor starts = starts_of(logits, 1), out_starts = starts_of(out, 1);
  const Lines lines(logits, 1, starts, {&targets, &g, &normalizers, &out_starts});
  dispatch(TrainTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = Compute<T>;
    tutti::cuda::launch("cross_entropy_grad", cross_entropy_grad_kernel<C>, lines.grid(device),
                        lines, rule, g.data<C>(), Operand(logits), logits.strides()[1],
                        targets.data<std::int64_t>(), normalizers.data<C>(), Operand(out),
                        out.strides()[1]);
  });
}

}  // namespace

const Softmax& softmax() {
  static constexpr Softmax table{forward, backward, cross_entropy, cross_entropy_grad};
  return table;
}

}  // namespace tutti::kernels::cuda
