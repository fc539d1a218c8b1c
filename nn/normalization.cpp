// The layers that normalise single samples: LayerNorm, GroupNorm and InstanceNorm. They check
// options and hold parameters; nn/functional and nn/batch_norm compute.
#include "normalization.h"
#include "../autograd/functions.h"
#include "functional/group_norm.h"
#include "functional/layer_norm.h"
#include "group_norm.h"
#include "instance_norm.h"
#include "layer_norm.h"

namespace tutti::nn {
namespace {

// Returns those of the options that all three layers have which are not the defaults.
template <class Options>
std::string changes(const Options& o) {
  return (o.eps == 1e-5 ? "" : fmt::format(", eps={}", o.eps)) +
         (o.affine == Options{}.affine ? "" : fmt::format(", affine={}", o.affine));
}

LayerNorm::Options checked(LayerNorm::Options o) {
  if (o.shape.empty())
    fail<ShapeError>(
        "LayerNorm: expected the option shape to name the sizes to normalise over, got ()");
  for (const std::int64_t size : o.shape)
    if (size < 1)
      fail<ValueError>("LayerNorm: expected sizes of at least 1, got {}", to_string(o.shape));
  check_normalization("LayerNorm", o);
  return o;
}

const GroupNorm::Options& checked(const GroupNorm::Options& o) {
  check_channels("GroupNorm", o);
  if (o.groups < 1 || o.channels % o.groups != 0)
    fail<ValueError>("GroupNorm: expected the option groups to divide {} channels, got {}",
                     o.channels, o.groups);
  return o;
}

const InstanceNorm::Options& checked(const InstanceNorm::Options& o) {
  check_channels("InstanceNorm", o);
  if (!(o.momentum >= 0 && o.momentum <= 1))
    fail<ValueError>("InstanceNorm: expected a momentum in [0, 1], got {}", o.momentum);
  return o;
}

}  // namespace

LayerNorm::LayerNorm(Options options)
    : LayerWith(checked(std::move(options))),
      weight(add_parameter("weight", options_.affine
                                         ? ones(options_.shape, {options_.dtype, options_.device})
                                         : Tensor())),
      bias(add_parameter("bias", options_.affine && options_.bias
                                     ? zeros(options_.shape, {options_.dtype, options_.device})
                                     : Tensor())) {}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, options_.shape, weight, bias, options_.eps);
}

std::string LayerNorm::describe() const {
  return tutti::to_string(options_.shape) + changes(options_) +
         (options_.affine && !options_.bias ? ", bias=false" : "");
}

GroupNorm::GroupNorm(const Options& options)
    : LayerWith(checked(options)),
      weight(add_parameter("weight", channel_values(options_, options_.affine, 1))),
      bias(add_parameter("bias", channel_values(options_, options_.affine, 0))) {}

Tensor GroupNorm::forward(const Tensor& x) {
  if (x.rank() < 2 || x.size(1) != options_.channels)
    fail<ShapeError>("{}: expected input of shape (N, {}, ...), got {}", error_name(),
                     options_.channels, tutti::to_string(x.shape()));
  return group_norm(x, options_.groups, weight, bias, options_.eps);
}

std::string GroupNorm::describe() const {
  return fmt::format("{}, {}{}", options_.groups, options_.channels, changes(options_));
}

InstanceNorm::InstanceNorm(InputDims input_dims, const Options& options)
    : LayerWith(checked(options)),
      input_dims_(input_dims),
      weight(add_parameter("weight", channel_values(options_, options_.affine, 1))),
      bias(add_parameter("bias", channel_values(options_, options_.affine, 0))),
      running_mean(
          add_buffer("running_mean", channel_values(options_, options_.track_running_stats, 0))),
      running_var(
          add_buffer("running_var", channel_values(options_, options_.track_running_stats, 1))),
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
  args.weight = repeat_channel_values(weight, samples);
  args.bias = repeat_channel_values(bias, samples);
  args.eps.value = options_.eps;
  args.momentum = options_.momentum;
  const bool moves = running_mean.defined();
  if (moves)
    args.running = {repeat_channel_values(running_mean, samples).clone(),
                    repeat_channel_values(running_var, samples).clone(),
                    zeros({}, {int64, running_mean.device()}),
                    {}};
  const Tensor y = batch_norm(x.contiguous().reshape({1, rows, x.numel() / rows}), args);
  if (moves) {
    running_mean.copy_(mean(args.running.mean.reshape({samples, channels}), {0}));
    running_var.copy_(mean(args.running.var.reshape({samples, channels}), {0}));
  }
  return y.reshape(x.shape()).contiguous(x.memory_format());
}

std::string InstanceNorm::describe() const {
  return std::to_string(options_.channels) + changes(options_) +
         (options_.momentum == 0.1 ? "" : fmt::format(", momentum={}", options_.momentum)) +
         (options_.track_running_stats ? ", track_running_stats=true" : "");
}

}  // namespace tutti::nn
