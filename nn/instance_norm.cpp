#include "instance_norm.h"

#include "../autograd/functions.h"

#include <cmath>

namespace tutti::nn {
namespace {

const InstanceNorm::Options& checked(const InstanceNorm::Options& o) {
  if (o.channels < 1)
    fail<ValueError>("InstanceNorm: expected at least 1 channel, got {}", o.channels);
  if (!(std::isfinite(o.eps) && o.eps >= 0))
    fail<ValueError>("InstanceNorm: expected a finite eps of at least 0, got {}", o.eps);
  if (!(o.momentum >= 0 && o.momentum <= 1))
    fail<ValueError>("InstanceNorm: expected a momentum in [0, 1], got {}", o.momentum);
  if (o.dtype != float32 && o.dtype != float64)
    fail<DTypeError>(
        "InstanceNorm: expected parameters in float32 or float64, got {}; inputs may have any "
        "floating dtype",
        to_string(o.dtype));
  return o;
}

Tensor filled(const InstanceNorm::Options& o, bool present, double value) {
  return present ? full({o.channels}, value, {o.dtype, o.device}) : Tensor();
}

// Returns one value for each sample and channel, (N C), from one for each channel.
Tensor repeat(const Tensor& t, std::int64_t samples) {
  if (!t.defined()) return {};
  return t.reshape({1, t.numel()}).expand({samples, t.numel()}).reshape({samples * t.numel()});
}

}  // namespace

InstanceNorm::InstanceNorm(InputDims input_dims, const Options& options)
    : input_dims_(input_dims),
      options_(checked(options)),
      weight(add_parameter("weight", filled(options_, options_.affine, 1))),
      bias(add_parameter("bias", filled(options_, options_.affine, 0))),
      running_mean(add_buffer("running_mean", filled(options_, options_.track_running_stats, 0))),
      running_var(add_buffer("running_var", filled(options_, options_.track_running_stats, 1))),
      num_batches_tracked(add_buffer(
          "num_batches_tracked",
          options_.track_running_stats ? zeros({}, {int64, options_.device}) : Tensor())) {}

Tensor InstanceNorm::forward(const Tensor& x) {
  if (x.rank() != input_dims_.min || x.size(1) != options_.channels)
    fail<ShapeError>("{}: expected input of shape {} with {} channels, got {}", error_name(),
                     input_dims_.shape, options_.channels, tutti::to_string(x.shape()));
  if (x.numel() > 0 && (is_training() || !running_mean.defined())) return normalize_instances(x);
  // An empty batch has no statistics either, and nothing to normalise.
  BatchNormArgs args;
  args.name = error_name();
  args.weight = weight;
  args.bias = bias;
  args.eps.value = options_.eps;
  args.running = {running_mean, running_var, {}, {}};
  args.use_batch_statistics = !running_mean.defined();
  args.update_running = false;
  return batch_norm(x, args);
}

// Samples become channels, so that one kernel normalises each channel of each sample.
Tensor InstanceNorm::normalize_instances(const Tensor& x) {
  const std::int64_t samples = x.size(0), channels = options_.channels, rows = samples * channels;
  if (x.numel() == rows)
    fail<ShapeError>(
        "{}: expected more than 1 value in each channel of a sample, got input of shape {}; one "
        "value has no variance",
        error_name(), tutti::to_string(x.shape()));
  BatchNormArgs args;
  args.name = error_name();
  args.weight = repeat(weight, samples);
  args.bias = repeat(bias, samples);
  args.eps.value = options_.eps;
  args.momentum = options_.momentum;
  if (running_mean.defined())
    args.running = {repeat(running_mean, samples).clone(),
                    repeat(running_var, samples).clone(),
                    zeros({}, {int64, running_mean.device()}),
                    {}};
  const Tensor y = batch_norm(x.contiguous().reshape({1, rows, x.numel() / rows}), args);
  if (running_mean.defined()) {
    running_mean.copy_(mean(args.running.mean.reshape({samples, channels}), {0}));
    running_var.copy_(mean(args.running.var.reshape({samples, channels}), {0}));
  }
  return y.reshape(x.shape()).contiguous(x.memory_format());
}

std::string InstanceNorm::describe() const {
  return fmt::format("{}, eps={}, momentum={}, affine={}, track_running_stats={}",
                     options_.channels, options_.eps, options_.momentum, options_.affine,
                     options_.track_running_stats);
}

}  // namespace tutti::nn
