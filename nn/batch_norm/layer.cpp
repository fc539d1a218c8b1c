#include "layer.h"

#include "../../autograd/recompute.h"
#include "packet.h"

#include <cmath>
#include <utility>

namespace tutti::nn {
namespace {

BatchNorm::Options checked(BatchNorm::Options o) {
  if (o.channels < 1)
    fail<ValueError>("BatchNorm: expected at least 1 channel, got {}", o.channels);
  if (!(std::isfinite(o.eps) && o.eps >= 0))
    fail<ValueError>("BatchNorm: expected a finite eps of at least 0, got {}", o.eps);
  if (o.momentum && !(*o.momentum >= 0 && *o.momentum <= 1))
    fail<ValueError>(
        "BatchNorm: expected a momentum in [0, 1] (or none for the plain average), got {}",
        *o.momentum);
  if (o.dtype != float32 && o.dtype != float64)
    fail<DTypeError>(
        "BatchNorm: parameters and statistics are float32 or float64, got {}; inputs may be of any "
        "floating dtype",
        to_string(o.dtype));
  return o;
}

Tensor filled(const BatchNorm::Options& o, bool present, double value) {
  return present ? full({o.channels}, value, {o.dtype, o.device}) : Tensor();
}

Tensor counter(const BatchNorm::Options& o, bool present, DType dtype) {
  return present ? zeros({}, {dtype, o.device}) : Tensor();
}

}  // namespace

BatchNorm::BatchNorm(Options options)
    : options_(checked(std::move(options))),
      late_(std::make_shared<LateHeaders>()),
      weight(add_parameter("weight", filled(options_, options_.affine, 1))),
      bias(add_parameter("bias", filled(options_, options_.affine && options_.bias, 0))),
      running_mean(add_buffer("running_mean", filled(options_, options_.track_running_stats, 0))),
      running_var(add_buffer("running_var", filled(options_, options_.track_running_stats, 1))),
      num_batches_tracked(add_buffer("num_batches_tracked",
                                     counter(options_, options_.track_running_stats, int64))),
      num_elements_tracked(add_buffer(
          "num_elements_tracked",
          counter(options_, options_.track_running_stats && options_.pooled, float64))) {}

// A float32 counter would stop at 2^24.
DType BatchNorm::own_dtype(const Tensor& own, DType requested) const {
  return requested == float64 || own.is_same(num_elements_tracked) ? float64 : float32;
}

BatchNormArgs BatchNorm::arguments() const {
  BatchNormArgs args;
  args.name = fmt::format("{} '{}'", options_.group ? "SyncBatchNorm" : "BatchNorm", path());
  args.input = input_rank();
  args.channels = options_.channels;
  args.weight = weight;
  args.bias = bias;
  args.running = {running_mean, running_var, num_batches_tracked, num_elements_tracked};
  args.use_batch_statistics = is_training() || !options_.track_running_stats;
  args.update_running = is_training();
  args.tracking = options_.pooled     ? kernels::Tracking::pooled
                  : options_.momentum ? kernels::Tracking::momentum
                                      : kernels::Tracking::cumulative;
  args.momentum = options_.momentum.value_or(0);
  args.eps = {options_.eps, options_.eps_is_floor};
  args.late = late_;
  if (options_.group && is_training()) args.sync = {*options_.group, synchronised_calls_ + 1};
  return args;
}

Tensor BatchNorm::run(const Tensor& x, const Tensor& residual, bool relu, const Tensor& weights) {
  BatchNormArgs args = arguments();
  args.residual = residual;
  args.relu = relu;
  args.position_weights = weights;
  const Tensor y = batch_norm(x, args);
  count_call();
  return y;
}

// After the call: one that was refused is none, on any rank. Nor is one of a single rank, or the
// second run of recompute(), which communicates nothing.
void BatchNorm::count_call() {
  const auto* tape = autograd::RecomputeTape::current();
  if (is_training() && options_.group && options_.group->communicates() &&
      !(tape && tape->is_recomputing()))
    ++synchronised_calls_;
}

void BatchNorm::check_statistics() const { late_->wait(); }

void BatchNorm::set_process_group(std::optional<ProcessGroup> group) {
  options_.group = std::move(group);
  synchronised_calls_ = 0;
  converted_ = false;
}

bool BatchNorm::convert(const ProcessGroup& group) {
  if (options_.group) return false;
  set_process_group(group);
  return converted_ = true;
}

bool BatchNorm::revert() {
  if (!converted_) return false;
  set_process_group(std::nullopt);
  return true;
}

Tensor BatchNorm::forward(const Tensor& x) { return run(x, {}, false); }
Tensor BatchNorm::forward_relu(const Tensor& x) { return run_with_hooks(x, {}, true); }
Tensor BatchNorm::forward_add(const Tensor& x, const Tensor& residual) {
  return run_with_hooks(x, residual, false);
}
Tensor BatchNorm::forward_add_relu(const Tensor& x, const Tensor& residual) {
  return run_with_hooks(x, residual, true);
}
Tensor BatchNorm::forward_weighted(const Tensor& x, const Tensor& weights) {
  return run_with_hooks(x, {}, false, weights);
}

Tensor BatchNorm::run_with_hooks(const Tensor& x, const Tensor& residual, bool relu,
                                 const Tensor& weights) {
  const trace::Span here = span();
  return run_hooks(x, run(x, residual, relu, weights));
}

std::size_t BatchNorm::Together::start(BatchNorm& layer, const Tensor& x,
                                       const Tensor& position_weights) {
  BatchNormArgs args = layer.arguments();
  args.position_weights = position_weights;
  return add(layer, x, std::move(args));
}

std::size_t BatchNorm::Together::add(BatchNorm& layer, const Tensor& x, BatchNormArgs args) {
  const trace::Span here = layer.span();
  const std::size_t which = calls_.start(x, std::move(args));
  started_.emplace_back(&layer, x);
  return which;
}

Tensor BatchNorm::Together::finish(std::size_t which, const Tensor& residual, bool relu) {
  if (which >= started_.size())
    fail<Error>("BatchNorm::Together: {} was not started; {} were", which, started_.size());
  const auto& [layer, x] = started_[which];
  const trace::Span here = layer->span();
  // Counted as soon as they are exchanged: a residual that this rank then refuses was no matter to
  // the others.
  calls_.exchange();
  if (!std::exchange(counted_, true))
    for (const auto& [each, input] : started_) each->count_call();
  return layer->run_hooks(x, calls_.finish(which, residual, relu));
}

std::vector<Tensor> BatchNorm::forward_together(const std::vector<Branch>& branches) {
  Together together;
  for (const Branch& branch : branches) {
    BatchNormArgs args = branch.layer.arguments();
    args.residual = branch.residual;
    args.relu = branch.relu;
    together.add(branch.layer, branch.x, std::move(args));
  }
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < branches.size(); ++i) outputs.push_back(together.finish(i));
  return outputs;
}

std::string BatchNorm::describe() const {
  std::string text = fmt::format("{}, eps={}", options_.channels, options_.eps);
  if (options_.eps_is_floor) text += " as floor";
  text += options_.pooled     ? ", pooled"
          : options_.momentum ? fmt::format(", momentum={}", *options_.momentum)
                              : ", momentum=none";
  // Where the layer has been moved, its tensors know better than its options.
  const Tensor& own = weight.defined() ? weight : running_mean;
  text += fmt::format(", affine={}, bias={}, track_running_stats={}, dtype={}, device={}",
                      options_.affine, options_.affine && options_.bias,
                      options_.track_running_stats,
                      tutti::to_string(own.defined() ? own.dtype() : options_.dtype),
                      tutti::to_string(own.defined() ? own.device() : options_.device));
  if (options_.group) text += fmt::format(", sync={} ranks", options_.group->size());
  return text;
}

}  // namespace tutti::nn
