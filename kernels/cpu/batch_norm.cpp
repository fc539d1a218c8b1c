// This file defines the table of the CPU's batch-norm kernels and the steps that work on
// per-channel values only. Each pass over activations has a file of its own (batch_norm_layout.h).
#include "../../core/create.h"
#include "../batch_norm_math.h"
#include "batch_norm_layout.h"

#include <cmath>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// Turns moments into sums, exact ones if the size of `sums` says so. `sums` may be `moments`.
void to_sums(const Tensor& moments, const Tensor& sums) {
  const std::int64_t C = packet_channels(moments);
  const double *mean = moments.data<double>() + packet_header_size, *m2 = mean + C;
  const double n = header_of(moments.data<double>()).count;
  PacketHeader& header = header_of(sums.data<double>());
  double *first = sums.data<double>() + packet_header_size, *second = first + C;
  if (sums.numel() == moments.numel()) {
    header.count = n;
    for (std::int64_t c = 0; c < C; ++c) {
      const ChannelSums of = sums_of(n, {mean[c], m2[c]});
      first[c] = of.first;
      second[c] = of.second;
    }
    return;
  }
  const DoubleDouble count = split({n, 0});
  header.count = count.high;
  header.count_low = count.low;
  double *first_low = second + C, *second_low = first_low + C;
  for (std::int64_t c = 0; c < C; ++c) {
    const ExactChannelSums of = exact_sums_of(n, {mean[c], m2[c]});
    first[c] = of.first.high;
    first_low[c] = of.first.low;
    second[c] = of.second.high;
    second_low[c] = of.second.low;
  }
}

// Turns sums back into moments. `moments` may be `sums` unless these are exact.
void from_sums(const Tensor& sums, const Tensor& moments) {
  const std::int64_t C = packet_channels(moments);
  const bool is_exact = sums.numel() != moments.numel();
  const PacketHeader& header = header_of(sums.data<double>());
  const double *first = sums.data<double>() + packet_header_size, *second = first + C;
  const DoubleDouble n = is_exact ? exact_sum(header.count, header.count_low)
                                  : DoubleDouble{header.count, 0};
  const double per_n = n.high > 0 ? 1 / n.high : 0;
  double *mean = moments.data<double>() + packet_header_size, *m2 = mean + C;
  header_of(moments.data<double>()).count = n.high;
  for (std::int64_t c = 0; c < C; ++c) {
    const ChannelMoments of =
        is_exact ? moments_of(n, {{first[c], first[2 * C + c]}, {second[c], second[2 * C + c]}})
                 : moments_of(per_n, ChannelSums{first[c], second[c]});
    mean[c] = of.mean;
    m2[c] = of.m2;
  }
}

// Writes mean and rstd from moments.
void finish(const Tensor& moments, Epsilon eps, const Tensor& mean, const Tensor& rstd) {
  const std::int64_t C = packet_channels(moments);
  const double *data = moments.data<double>(), *means = data + packet_header_size, *m2 = means + C;
  double *to_mean = mean.data<double>(), *to_rstd = rstd.data<double>();
  const double per_n = data[0] > 0 ? 1 / data[0] : 0;
  for (std::int64_t c = 0; c < C; ++c) {
    to_mean[c] = means[c];
    to_rstd[c] = rstd_of(m2[c] * per_n, eps);
  }
}

void running_statistics(const RunningStatistics& running, Epsilon eps, const Tensor& mean,
                        const Tensor& rstd) {
  const std::int64_t C = mean.numel();
  const auto means = channel_values(running.mean, C, 0), vars = channel_values(running.var, C, 1);
  double *to_mean = mean.data<double>(), *to_rstd = rstd.data<double>();
  for (std::int64_t c = 0; c < C; ++c) {
    to_mean[c] = means[static_cast<std::size_t>(c)];
    to_rstd[c] = rstd_of(vars[static_cast<std::size_t>(c)], eps);
  }
}

// Calls next(running moments, batch moments) for every channel and stores what it returns.
template <class Next>
void for_each_running(const Tensor& moments, const RunningStatistics& running, const Next& next) {
  const tutti::detail::DenormalScope denormals;
  const std::int64_t C = packet_channels(moments);
  const double *batch_mean = moments.data<double>() + packet_header_size, *m2 = batch_mean + C;
  dispatch(FloatTypes{}, running.mean.dtype(), "batch_norm", [&]<class T>() {
    T *mean = running.mean.data<T>(), *var = running.var.data<T>();
    for (std::int64_t c = 0; c < C; ++c) {
      const RunningMoments to =
          next({static_cast<double>(mean[c]), static_cast<double>(var[c])}, {batch_mean[c], m2[c]});
      mean[c] = static_cast<T>(to.mean);
      var[c] = static_cast<T>(to.var);
    }
  });
}

void update_running(const Tensor& moments, const StatisticsUpdate& update) {
  const RunningStatistics& running = update.running;
  const double n = moments.data<double>()[0];
  if (!(n > 1)) return;
  const std::int64_t batches = ++*running.batches.data<std::int64_t>();
  if (update.tracking == Tracking::pooled) {
    double& elements = *running.elements.data<double>();
    for_each_running(moments, running,
                     [n, before = elements](RunningMoments old, ChannelMoments batch) {
                       return pooled(old, before, n, batch);
                     });
    elements += n;
    return;
  }
  const double fraction = fraction_of(update.tracking, update.momentum, batches);
  for_each_running(moments, running, [n, fraction](RunningMoments old, ChannelMoments batch) {
    return moved(old, fraction, n, batch);
  });
}

void parameter_grad(const Tensor& sums, const Tensor& rstd, const Tensor& weight_grad,
                    const Tensor& bias_grad) {
  const tutti::detail::DenormalScope denormals;
  const double *s1 = sums.data<double>() + packet_header_size, *s2 = s1 + packet_channels(sums),
               *r = rstd.data<double>();
  write_channels(weight_grad, [=](std::int64_t c) { return s2[c] * r[c]; });
  write_channels(bias_grad, [=](std::int64_t c) { return s1[c]; });
}

// The entries below combine several steps. On the CPU they run one step after the other.

void moment_sums(const Tensor& x, const Tensor& position_weights, const PacketHeader& header,
                 const Tensor& sums) {
  header_of(sums.data<double>()) = header;
  if (sums.numel() == packet_size(x.size(1))) {
    header_of(sums.data<double>()).count_low = 0;
    batch_norm_moments(x, position_weights, sums);
    to_sums(sums, sums);
    return;
  }
  const Tensor moments = empty({packet_size(x.size(1))}, {float64});
  batch_norm_moments(x, position_weights, moments);
  to_sums(moments, sums);
}

void finalize_statistics(const Tensor& sums, const Tensor& moments, const StatisticsUpdate& how,
                         const Tensor& mean, const Tensor& rstd) {
  bool agree = true;
  if (sums.defined() && how.ranks > 0) {
    const PacketHeader& header = header_of(sums.data<double>());
    agree = fingerprints_agree(header.fingerprint, header.fingerprint_squared, how.ranks);
  }
  if (sums.defined()) from_sums(sums, moments);
  finish(moments, how.eps, mean, rstd);
  if (agree && how.running.mean.defined()) update_running(moments, how);
}

void finalize_and_apply(const ForwardFromSums& of) {
  const Normalization& to = of.normalization;
  finalize_statistics(of.sums, of.moments, of.update, to.mean, to.rstd);
  batch_norm_apply(of.x, to, of.y);
  const Tensor& packet = of.sums.defined() ? of.sums : of.moments;
  if (of.report) *of.report = {header_of(packet.data<double>()), 1};
}

// The CPU stores no mask: it reads the output, which the next layer keeps anyway. A mask of bits
// would have to be spread over the lanes of vectors, which portable code cannot express.
std::int64_t mask_size(const Tensor&) { return 0; }

void gradient_sums(const GradientSums& of) {
  batch_norm_gradient_sums(of);
  PacketHeader& header = header_of(of.sums.data<double>());
  header = of.header;
  header.count = header.count_low = 0;
  parameter_grad(of.sums, of.saved.normalization.rstd, of.weight_grad, of.bias_grad);
}

void apply_grad(const InputGradient& of) {
  if (of.dx.defined()) batch_norm_apply_grad(of);
  if (of.report) *of.report = {header_of(of.sums.data<double>()), 1};
}

}  // namespace

extern const BatchNorm batch_norm{.moments = batch_norm_moments,
                                  .moment_sums = moment_sums,
                                  .finalize_statistics = finalize_statistics,
                                  .running_statistics = running_statistics,
                                  .mask_size = mask_size,
                                  .apply = batch_norm_apply,
                                  .finalize_and_apply = finalize_and_apply,
                                  .gradient_sums = gradient_sums,
                                  .apply_grad = apply_grad};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
