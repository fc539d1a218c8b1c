// The per-channel kernels of batch norm on the CPU, and the table.
#include "../../core/create.h"
#include "batch_norm_tables.h"
#include "batch_norm_view.h"

#include <bit>
#include <cmath>

namespace tutti::kernels::cpu {
namespace {

std::int64_t channels_of(const Tensor& packet) { return (packet.numel() - packet_header) / 2; }

// A number with more digits than a double has: high + low, where |low| is at most half the last
// digit of high.
struct Double2 {
  double high, low;
};

// Without rounding: Knuth's sum, and the remainder of a product that a fused multiply-add gives.
Double2 sum_of(double a, double b) {
  const double sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}
Double2 product_of(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}

// As it travels: a high part of 26 bits, and the rest. What is infinite or NaN has no rest.
void split(Double2 from, double& high, double& low) {
  high = std::bit_cast<double>(std::bit_cast<std::uint64_t>(from.high) &
                               ~std::uint64_t{(1u << 27) - 1});
  low = (from.high - high) + from.low;
  if (!std::isfinite(from.high)) high = from.high, low = 0;
}

void to_exact_sums(std::int64_t C, const double* moments, double* sums) {
  const double *mean = moments + packet_header, *m2 = mean + C, n = moments[0];
  split({n, 0}, sums[0], sums[1]);
  double* to = sums + packet_header;
  for (std::int64_t c = 0; c < C; ++c) {
    const Double2 first = product_of(n, mean[c]), second = product_of(first.high, mean[c]);
    const Double2 total = sum_of(second.high, m2[c]);
    split(first, to[c], to[2 * C + c]);
    split({total.high, total.low + (second.low + first.low * mean[c])}, to[C + c], to[3 * C + c]);
  }
}

void from_exact_sums(std::int64_t C, const double* sums, double* moments) {
  const Double2 n = sum_of(sums[0], sums[1]);
  double *mean = moments + packet_header, *m2 = mean + C;
  const double* from = sums + packet_header;
  moments[0] = n.high;
  for (std::int64_t c = 0; c < C; ++c) {
    const Double2 first = sum_of(from[c], from[2 * C + c]),
                  second = sum_of(from[C + c], from[3 * C + c]);
    // Squares around `about`, the mean but for its rounding: second - 2 about first + about^2 n.
    // With `rest`, what first has more than n about, that is second - about first - about rest.
    const double about = n.high > 0 ? first.high / n.high : 0;
    const Double2 whole = product_of(n.high, about), square = product_of(about, first.high);
    const double rest = (first.high - whole.high) + (first.low - whole.low - n.low * about);
    const double around = (second.high - square.high) +
                          (second.low - square.low - about * first.low) - about * rest;
    mean[c] = n.high > 0 ? about + rest / n.high : 0;
    m2[c] = around < 0 ? 0 : around;  // NaN stays
  }
}

void to_sums(const Tensor& moments, const Tensor& sums) {
  const std::int64_t C = channels_of(moments);
  const double* data = moments.data<double>();
  if (sums.numel() != moments.numel()) return to_exact_sums(C, data, sums.data<double>());
  const double *mean = data + packet_header, *m2 = mean + C, n = data[0];
  double *first = sums.data<double>() + packet_header, *second = first + C;
  sums.data<double>()[0] = n;
  for (std::int64_t c = 0; c < C; ++c) {
    const double sum = n * mean[c];
    second[c] = m2[c] + sum * mean[c];
    first[c] = sum;
  }
}

void from_sums(const Tensor& sums, const Tensor& moments) {
  const std::int64_t C = channels_of(moments);
  double* data = moments.data<double>();
  if (sums.numel() != moments.numel()) return from_exact_sums(C, sums.data<double>(), data);
  const double *first = sums.data<double>() + packet_header, *second = first + C,
               n = sums.data<double>()[0];
  double *to_mean = data + packet_header, *to_m2 = to_mean + C;
  data[0] = n;
  const double per_n = n > 0 ? 1 / n : 0;
  for (std::int64_t c = 0; c < C; ++c) {
    const double sum = first[c], mean = sum * per_n, m2 = second[c] - sum * mean;
    to_mean[c] = mean;
    to_m2[c] = m2 < 0 ? 0 : m2;  // NaN stays
  }
}

double rstd_of(double var, Epsilon eps) {
  if (!eps.floor) var += eps.value;
  else if (var < eps.value) var = eps.value;  // fmax would make a number of NaN
  return 1 / std::sqrt(var);
}

void finish(const Tensor& packet, Epsilon eps, const Tensor& mean, const Tensor& rstd) {
  const std::int64_t C = channels_of(packet);
  const double *data = packet.data<double>(), *means = data + packet_header, *m2 = means + C;
  double *to_mean = mean.data<double>(), *to_rstd = rstd.data<double>();
  const double per_n = data[0] > 0 ? 1 / data[0] : 0;
  for (std::int64_t c = 0; c < C; ++c) {
    to_mean[c] = means[c];
    to_rstd[c] = rstd_of(m2[c] * per_n, eps);
  }
}

void finish_running(const RunningStatistics& running, Epsilon eps, const Tensor& mean,
                    const Tensor& rstd) {
  const std::int64_t C = mean.numel();
  const auto means = channel_values(running.mean, C, 0), vars = channel_values(running.var, C, 1);
  double *to_mean = mean.data<double>(), *to_rstd = rstd.data<double>();
  for (std::int64_t c = 0; c < C; ++c) {
    to_mean[c] = means[static_cast<std::size_t>(c)];
    to_rstd[c] = rstd_of(vars[static_cast<std::size_t>(c)], eps);
  }
}

void update(const Tensor& packet, Tracking tracking, double momentum,
            const RunningStatistics& running) {
  const std::int64_t C = channels_of(packet);
  const double *data = packet.data<double>(), *mean = data + packet_header, *m2 = mean + C,
               n = data[0];
  if (!(n > 1)) return;
  const std::int64_t batches = ++*running.batches.data<std::int64_t>();
  dispatch(FloatTypes{}, running.mean.dtype(), "batch_norm", [&]<class T>() {
    T *to_mean = running.mean.data<T>(), *to_var = running.var.data<T>();
    if (tracking == Tracking::pooled) {
      double& elements = *running.elements.data<double>();
      const double before = elements, share = n / (before + n);
      for (std::int64_t c = 0; c < C; ++c) {
        const double delta = mean[c] - static_cast<double>(to_mean[c]);
        const double total = (before > 0 ? (before - 1) * static_cast<double>(to_var[c]) : 0) +
                             m2[c] + (before > 0 ? delta * delta * before * share : 0);
        to_mean[c] =
            static_cast<T>(before > 0 ? static_cast<double>(to_mean[c]) + delta * share : mean[c]);
        to_var[c] = static_cast<T>(total / (before + n - 1));
      }
      elements += n;
      return;
    }
    const double factor = tracking == Tracking::cumulative ? 1 / static_cast<double>(batches)
                                                           : momentum;
    for (std::int64_t c = 0; c < C; ++c) {
      to_mean[c] =
          static_cast<T>((1 - factor) * static_cast<double>(to_mean[c]) + factor * mean[c]);
      to_var[c] =
          static_cast<T>((1 - factor) * static_cast<double>(to_var[c]) + factor * m2[c] / (n - 1));
    }
  });
}

void parameter_grad(const Tensor& sums, const Tensor& rstd, const Tensor& weight_grad,
                    const Tensor& bias_grad) {
  const std::int64_t C = channels_of(sums);
  const double *s1 = sums.data<double>() + packet_header, *s2 = s1 + C, *r = rstd.data<double>();
  if (weight_grad.defined())
    dispatch(FloatTypes{}, weight_grad.dtype(), "batch_norm", [&]<class T>() {
      T* to = weight_grad.data<T>();
      for (std::int64_t c = 0; c < C; ++c) to[c] = static_cast<T>(s2[c] * r[c]);
    });
  if (bias_grad.defined())
    dispatch(FloatTypes{}, bias_grad.dtype(), "batch_norm", [&]<class T>() {
      T* to = bias_grad.data<T>();
      for (std::int64_t c = 0; c < C; ++c) to[c] = static_cast<T>(s1[c]);
    });
}

// Several at once: here nothing is won by it, so they are what they are made of.

void put_message(const Tensor& sums, const Message& m) {
  double* to = sums.data<double>();
  const double numbers[] = {m.input_grad, m.backward, m.fingerprint, m.fingerprint_squared, 0, 0};
  std::copy(std::begin(numbers), std::end(numbers), to + message_at);
}

void moment_sums(const Tensor& x, const Tensor& weights, const Tensor& sums,
                 const Message& message) {
  put_message(sums, message);
  if (sums.numel() == packet_size(x.size(1))) {
    sums.data<double>()[1] = 0;
    batch_norm_moments(x, weights, sums);
    to_sums(sums, sums);
    return;
  }
  const Tensor moments = empty({packet_size(x.size(1))}, {float64});
  batch_norm_moments(x, weights, moments);
  to_sums(moments, sums);
}

void settle(const Tensor& sums, const Tensor& moments, const Settlement& how, const Tensor& mean,
            const Tensor& rstd) {
  const double* message = sums.defined() ? sums.data<double>() + message_at : nullptr;
  const bool agree = how.ranks == 0 || Message::agrees(message[2], message[3], how.ranks);
  if (sums.defined()) from_sums(sums, moments);
  finish(moments, how.eps, mean, rstd);
  if (agree && how.running.mean.defined()) update(moments, how.tracking, how.momentum, how.running);
}

void forward(const Tensor& x, const Tensor& weights, const Tensor& moments, const Settlement& how,
             const Normalization& to, const Tensor& y) {
  batch_norm_moments(x, weights, moments);
  finish(moments, how.eps, to.mean, to.rstd);
  if (how.running.mean.defined()) update(moments, how.tracking, how.momentum, how.running);
  batch_norm_apply(x, to, y);
}

// None: the output, which the layer after this one keeps anyway, is read instead. A mask of bits
// would have to be spread over the lanes of vectors again, for which there is no portable word.
std::int64_t mask_size(const Tensor&) { return 0; }

void gradient_sums(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                   const Tensor& masked, const Tensor& weight_grad, const Tensor& bias_grad,
                   const Message& message) {
  batch_norm_reduce_grad(dy, of, sums, masked);
  sums.data<double>()[0] = sums.data<double>()[1] = 0;
  put_message(sums, message);
  parameter_grad(sums, of.forward.rstd, weight_grad, bias_grad);
}

void backward(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
              const Tensor& masked, const Tensor& weight_grad, const Tensor& bias_grad,
              const Tensor& moments, const Tensor& weights, Epsilon eps, const Tensor& dx) {
  gradient_sums(dy, of, sums, masked, weight_grad, bias_grad, {});
  NormalizationGrad rest = of;
  if (masked.defined()) rest.forward.relu = false;  // it is masked already
  batch_norm_apply_grad(masked.defined() ? masked : dy, rest, sums, moments, weights, eps, dx);
}

}  // namespace

const BatchNorm& batch_norm() {
  static constexpr BatchNorm table{batch_norm_moments,
                                   to_sums,
                                   from_sums,
                                   finish,
                                   finish_running,
                                   update,
                                   mask_size,
                                   batch_norm_apply,
                                   batch_norm_reduce_grad,
                                   parameter_grad,
                                   batch_norm_apply_grad,
                                   moment_sums,
                                   settle,
                                   forward,
                                   gradient_sums,
                                   backward};
  return table;
}

}  // namespace tutti::kernels::cpu
