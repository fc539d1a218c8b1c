// reference_batch_norm() is SyncBatchNorm in tensor arithmetic and distributed::all_reduce(): the
// answer to "what does this layer compute?". Autograd makes its backward. It is slow: it needs
// five collectives where the layer needs two, computes in float64 and keeps every intermediate
// result. Tests compare the layer with it.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/distributed/functional.h>

namespace tutti::nn {

/// The options and tensors of a SyncBatchNorm in training. Undefined tensors are absent.
struct ReferenceBatchNorm {
  Tensor weight = {}, bias = {};               ///< (C)
  Tensor running_mean = {}, running_var = {};  ///< (C); the call changes them in place
  double eps = 1e-5, momentum = 0.1;
  Tensor residual = {};          ///< like x
  bool relu = false;             ///< applies max(., 0) to the output
  Tensor position_weights = {};  ///< (N) or (N, ...), at least 0
  ProcessGroup group = {};       ///< the ranks that share their statistics
};

/// Returns y = (x - mean) / sqrt(var + eps) weight + bias (+ residual, then ReLU) for x of shape
/// (N, C, ...), where mean and var are those of each channel over all ranks, weighted with the
/// position weights. Unlike in the layer, x must be finite where its weight is 0. Every rank calls
/// the function, and all ranks run its backward or none does. A rank may have no sample.
inline Tensor reference_batch_norm(const Tensor& x, const ReferenceBatchNorm& of) {
  Dims all_but_channels{0};
  for (int d = 2; d < x.rank(); ++d) all_but_channels.push_back(d);
  Shape one_per_channel = Dims::filled(x.rank(), 1), one_per_position = x.shape();
  one_per_channel[1] = x.size(1);
  one_per_position[1] = 1;

  const Tensor values = x.to(float64);
  Tensor w = ones(one_per_position, {float64, x.device()});
  if (of.position_weights.defined()) {
    Shape given = one_per_position;
    if (of.position_weights.rank() == 1) given = Dims::filled(x.rank(), 1), given[0] = x.size(0);
    w = w * of.position_weights.to(float64).reshape(given);
  }

  // The statistics of each channel over all ranks, of shape (1, C, 1, ...). Where no rank has a
  // sample, they are 0.
  const auto sum_over_ranks = [&](const Tensor& t) {
    return distributed::all_reduce(sum(t, all_but_channels, true), of.group);
  };
  const Tensor n = clamp(sum_over_ranks(w), 1e-300, {});
  const Tensor mean = sum_over_ranks(values * w) / n;
  const Tensor var = sum_over_ranks(square(values - mean) * w) / n;

  // The running statistics move towards those of the batch, the variance towards the unbiased one.
  if (const double count = n.item<double>(); of.running_mean.defined() && count > 1) {
    const NoGrad no_grad;
    const auto move = [&](const Tensor& running, const Tensor& to) {
      running.copy_(running * (1 - of.momentum) + to.reshape(running.shape()) * of.momentum);
    };
    move(of.running_mean, mean);
    move(of.running_var, var * (count / (count - 1)));
  }

  Tensor y = (values - mean) * rsqrt(var + of.eps);
  if (of.weight.defined()) y = y * of.weight.to(float64).reshape(one_per_channel);
  if (of.bias.defined()) y = y + of.bias.to(float64).reshape(one_per_channel);
  if (of.residual.defined()) y = y + of.residual.to(float64);
  return (of.relu ? relu(y) : y).to(x.dtype());
}

}  // namespace tutti::nn
