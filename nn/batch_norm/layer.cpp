#include "layer.h"

#include "../../autograd/functions.h"
#include "../../distributed/backend.h"
#include "../functional/group_norm.h"
#include "../normalization.h"
#include "call.h"

#include <utility>

namespace tutti::nn {
namespace {

BatchNorm::Options checked(BatchNorm::Options o) {
  check_channels("BatchNorm", o);
  if (o.momentum && !(*o.momentum >= 0 && *o.momentum <= 1))
    fail<ValueError>(
        "BatchNorm: expected a momentum in [0, 1] (or none for the plain average), got {}",
        *o.momentum);
  return o;
}

Tensor counter(const BatchNorm::Options& o, bool present, DType dtype) {
  return present ? zeros({}, {dtype, o.device}) : Tensor();
}

}  // namespace

BatchNorm::BatchNorm(Options options)
    : options_(checked(std::move(options))),
      history_(std::make_shared<CallHistory>()),
      weight(add_parameter("weight", channel_values(options_, options_.affine, 1))),
      bias(add_parameter("bias", channel_values(options_, options_.affine && options_.bias, 0))),
      running_mean(
          add_buffer("running_mean", channel_values(options_, options_.track_running_stats, 0))),
      running_var(
          add_buffer("running_var", channel_values(options_, options_.track_running_stats, 1))),
      num_batches_tracked(add_buffer("num_batches_tracked",
                                     counter(options_, options_.track_running_stats, int64))),
      num_elements_tracked(
          add_buffer("num_elements_tracked",
                     counter(options_, options_.track_running_stats && options_.pooled, float64))) {
  if (options_.group) set_process_group(options_.group);
}

Tensor BatchNorm::forward(const Tensor& x) { return compute(x, {}); }

Tensor BatchNorm::forward(const Tensor& x, const ForwardOptions& options) {
  return run(x, [&] { return compute(x, options); });
}

Tensor BatchNorm::compute(const Tensor& x, const ForwardOptions& options) {
  if (channel_groups_ > 0) return normalize_groups(x, options);
  look_for_world();
  return batch_norm(x, arguments(options), history_);
}

Tensor BatchNorm::normalize_groups(const Tensor& x, const ForwardOptions& options) const {
  if (x.rank() < input_dims().min || x.rank() > input_dims().max)
    fail<ShapeError>("{}: expected input of shape {}, got {}", error_name(), input_dims().shape,
                     tutti::to_string(x.shape()));
  if (options.position_weights.defined())
    fail<ValueError>(
        "{}: the layer normalises by {} groups of channels, which knows no position weights",
        error_name(), channel_groups_);
  Tensor y = group_norm(x, channel_groups_, weight, bias, options_.eps);
  if (options.residual.defined()) y = y + options.residual;
  return options.relu ? relu(y) : y;
}

BatchNormArgs BatchNorm::arguments(const ForwardOptions& options) const {
  BatchNormArgs args;
  static_cast<ForwardOptions&>(args) = options;
  args.name = error_name();
  args.input_dims = input_dims();
  args.channels = options_.channels;
  args.weight = weight;
  args.bias = bias;
  args.running = {running_mean, running_var, num_batches_tracked, num_elements_tracked};
  const bool trains = is_training() && !is_frozen_;
  args.use_batch_statistics = trains || !options_.track_running_stats;
  args.update_running = trains;
  args.tracking = options_.pooled     ? kernels::Tracking::pooled
                  : options_.momentum ? kernels::Tracking::momentum
                                      : kernels::Tracking::cumulative;
  args.momentum = options_.momentum.value_or(0);
  args.eps = {options_.eps, options_.eps_is_floor};
  args.recompute_output = options_.recompute_output;
  if (trains) args.group = options_.group;
  if (pooled_statistics_.mean.defined()) {
    args.running = pooled_statistics_;
    args.tracking = kernels::Tracking::pooled;
  }
  if (is_folded()) set_folded_arguments(args);
  return args;
}

void BatchNorm::set_folded_arguments(BatchNormArgs& args) const {
  if (args.update_running)
    fail<Error>(
        "{}: the layer was folded into the one before it (fold_batch_norm) and cannot be trained; "
        "call eval(), or train a model that was not folded",
        args.name);
  args.is_folded = true;
  args.use_batch_statistics = false;
  args.input_dims = {folded_rank_, folded_rank_,
                     folded_rank_ == 2 ? "(N, C), as it was folded into a Linear"
                                       : "of the convolution into which it was folded"};
}

void BatchNorm::become_identity(int rank) {
  folded_rank_ = rank;
  for (const Tensor* own :
       {&weight, &bias, &running_mean, &running_var, &num_batches_tracked, &num_elements_tracked})
    replace_tensor(*own, {});
}

void BatchNorm::check_channel_groups(std::int64_t groups) const {
  if (groups < 1 || options_.channels % groups != 0)
    fail<ValueError>("{}: expected groups that divide {} channels, got {}", error_name(),
                     options_.channels, groups);
  if (options_.group || options_.eps_is_floor)
    fail<ValueError>("{}: a layer that {} cannot normalise by groups of channels; {}", error_name(),
                     options_.group ? "shares statistics with ranks" : "takes eps as a floor",
                     options_.group ? "call set_process_group({}) first" : "GroupNorm adds eps");
}

void BatchNorm::normalize_by_groups(std::int64_t groups) {
  check_channel_groups(groups);
  channel_groups_ = groups;
  for (const Tensor* own :
       {&running_mean, &running_var, &num_batches_tracked, &num_elements_tracked})
    replace_tensor(*own, {});
}

void BatchNorm::check_statistics() const { history_->deferred_errors.throw_all(); }

void BatchNorm::freeze(bool on) {
  is_frozen_ = on;
  for (const Tensor& own : parameters()) own.requires_grad_(!on);
}

void BatchNorm::set_process_group(std::optional<ProcessGroup> group) {
  share_with(std::move(group));
  is_of_world_ = false;
}

void BatchNorm::share_with_world() {
  share_with(distributed::world());
  is_of_world_ = true;
}

void BatchNorm::look_for_world() {
  if (is_of_world_ && is_training() && !is_frozen_ && !options_.group->communicates() &&
      distributed::world().communicates())
    share_with_world();
}

void BatchNorm::share_with(std::optional<ProcessGroup> group) {
  if (group && channel_groups_ > 0)
    fail<ValueError>(
        "{}: the layer normalises by groups of channels and has no statistics to share",
        error_name());
  options_.group = std::move(group);
  history_->layer = options_.group ? ++options_.group->implementation()->layers : 0;
  history_->traits = {};
  history_->synchronized_calls = 0;
}

bool BatchNorm::convert(const std::optional<ProcessGroup>& group) {
  if (options_.group || channel_groups_ > 0) return false;
  if (group) set_process_group(group);
  else share_with_world();
  return true;
}

// Parameters and statistics stay in float32 or float64. A float32 counter would stop at 2^24.
DType BatchNorm::own_dtype(const Tensor& own, DType requested) const {
  return requested == float64 || own.is_same(num_elements_tracked) ? float64 : float32;
}

std::string BatchNorm::error_name() const {
  const char* type = options_.group ? "SyncBatchNorm" : "BatchNorm";
  const std::string where = path();
  return where.empty() ? type : fmt::format("{} '{}'", type, where);
}

std::string BatchNorm::describe() const {
  std::string text = std::to_string(options_.channels);
  if (options_.eps != 1e-5 || options_.eps_is_floor)
    text += fmt::format(", eps={}{}", options_.eps, options_.eps_is_floor ? " as floor" : "");
  if (options_.pooled) text += ", pooled";
  else if (!options_.momentum) text += ", momentum=none";
  else if (*options_.momentum != 0.1) text += fmt::format(", momentum={}", *options_.momentum);
  if (!options_.affine) text += ", affine=false";
  else if (!options_.bias) text += ", bias=false";
  if (!options_.track_running_stats) text += ", track_running_stats=false";
  // If the layer has been moved, its tensors know its dtype and device better than its options.
  const Tensor& own = weight.defined() ? weight : running_mean;
  const DType dtype = own.defined() ? own.dtype() : options_.dtype;
  const Device device = own.defined() ? own.device() : options_.device;
  if (dtype != float32) text += ", dtype=" + tutti::to_string(dtype);
  if (!device.is_cpu()) text += ", device=" + tutti::to_string(device);
  if (channel_groups_ > 0) text += fmt::format(", normalises by {} groups", channel_groups_);
  if (options_.recompute_output) text += ", recompute_output=true";
  if (is_frozen_) text += ", frozen";
  if (is_folded()) text += ", folded";
  if (options_.group) text += fmt::format(", sync={} ranks", options_.group->size());
  return text;
}

}  // namespace tutti::nn
