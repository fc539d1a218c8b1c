// The backward of batch norm for one layer, and below it the steps that it takes.
#include "backward.h"

#include "../../core/create.h"

#include <utility>

namespace tutti::nn {
namespace {

std::vector<Tensor> backward_in_one_kernel(const SavedForward& saved, const Tensor& gradient);
void all_reduce(const SavedForward& saved, const Tensor& sums);

}  // namespace

std::vector<Tensor> batch_norm_backward(const SavedForward& saved, const Tensor& dy) {
  saved.history->deferred_errors.throw_arrived();
  if (saved.fits_one_kernel()) return backward_in_one_kernel(saved, dy);

  // Sum of dy and sum of dy (x - mean) of every channel: of this rank, which yields its share of
  // the gradients of weight and bias, then of all ranks, by one collective.
  const LocalGradients local = local_gradients(saved, dy);
  all_reduce(saved, local.sums);

  const Tensor dx = input_gradient(saved, local);
  return {dx, local.weight, local.bias, local.residual};
}

namespace {

const kernels::BatchNorm& kernels_of(const SavedForward& saved) {
  return kernels::batch_norm(saved.x.get().device());
}

kernels::NormalizationGrad normalization_grad(const SavedForward& saved) {
  return {{.mean = saved.statistics.mean,
           .rstd = saved.statistics.rstd,
           .weight = saved.weight,
           .bias = saved.bias,
           .residual = saved.has_residual ? saved.x.get() : Tensor(),
           .relu = saved.relu,
           .mask = saved.mask},
          saved.x,
          saved.y,
          bool(saved.position_weights)};
}

// The gradient of y in the format of x, and memory for what the kernels compute from it. The
// gradient of x may replace one that nobody else holds: that memory is in the cache already.
LocalGradients allocate(const SavedForward& saved, const Tensor& gradient) {
  const Tensor& x = saved.x;
  const auto& needs = saved.needs_gradient;
  LocalGradients local;
  const MemoryFormat format = format_of(x);
  Tensor copy = gradient.is_contiguous(format) ? Tensor() : gradient.contiguous(format);
  const bool is_exclusive = (copy.defined() ? copy : gradient).is_exclusive();
  local.dy = copy.defined() ? std::move(copy) : gradient;

  local.is_masked = needs.residual && saved.relu;
  local.can_overwrite_dy = is_exclusive && !needs.residual;
  if (needs.residual) local.residual = local.is_masked && !is_exclusive ? empty_like(x) : local.dy;
  if (needs.weight) local.weight = empty_like(saved.weight.get());
  if (needs.bias) local.bias = empty_like(saved.bias.get());
  if (needs.weight || needs.bias || saved.all_reduces || local.is_masked ||
      (needs.x && saved.statistics.moments.defined()))
    local.sums = empty({kernels::packet_size(x.size(1))}, {float64, x.device()});
  return local;
}

Tensor masked_of(const LocalGradients& local) {
  return local.is_masked ? local.residual : Tensor();
}

Tensor new_input_gradient(const SavedForward& saved, const LocalGradients& local) {
  return local.can_overwrite_dy ? local.dy : empty_like(saved.x.get());
}

// All steps of a rank alone: sums and gradients.
std::vector<Tensor> backward_in_one_kernel(const SavedForward& saved, const Tensor& gradient) {
  const LocalGradients local = allocate(saved, gradient);
  const Tensor dx = new_input_gradient(saved, local);
  kernels_of(saved).backward(local.dy, normalization_grad(saved), local.sums, masked_of(local),
                             local.weight, local.bias, saved.statistics.moments,
                             saved.position_weights, saved.eps, dx);
  return {dx, local.weight, local.bias, local.residual};
}

void all_reduce(const SavedForward& saved, const Tensor& sums) {
  if (!saved.all_reduces) return;
  distributed::Work work = start_all_reduce(sums, saved.id, Phase::backward);
  autograd::run_deferred();  // Weight gradients of the convolution above hide the exchange.
  work.wait();
  read_or_defer_header(sums, saved.id, Phase::backward, saved.x.get().shape(),
                       saved.history->deferred_errors);
}

}  // namespace

SavedForward::SavedForward(const Call& call, const Output& output)
    : x(call.x),
      weight(output.normalization.weight),
      bias(output.normalization.bias),
      position_weights(call.position_weights),
      mask(output.normalization.mask),
      statistics(output.statistics),
      eps(call.args.eps),
      relu(call.args.relu),
      has_residual(call.args.residual.defined()),
      needs_gradient{autograd::needs_grad(call.input), autograd::needs_grad(call.args.weight),
                     autograd::needs_grad(call.args.bias),
                     autograd::needs_grad(call.args.residual)},
      id(call.id),
      all_reduces(call.is_synchronized && output.statistics.input_gradient_needed),
      history(call.history) {
  if (relu && has_residual && !mask.defined()) y = output.y;
  id.number = statistics.call_number;
}

bool SavedForward::fits_one_kernel() const {
  return needs_gradient.x && statistics.moments.defined() && !all_reduces;
}

LocalGradients local_gradients(const SavedForward& saved, const Tensor& dy) {
  LocalGradients local = allocate(saved, dy);
  if (!local.sums.defined()) return local;
  const kernels::Message message =
      saved.all_reduces ? message_of(saved.id, Phase::backward, {}, local.sums.numel())
                        : kernels::Message{};
  kernels_of(saved).gradient_sums(local.dy, normalization_grad(saved), local.sums, masked_of(local),
                                  local.weight, local.bias, message);
  if (local.is_masked) local.dy = local.residual;
  return local;
}

Tensor input_gradient(const SavedForward& saved, const LocalGradients& local) {
  if (!saved.needs_gradient.x) return {};
  const Tensor dx = new_input_gradient(saved, local);
  kernels::NormalizationGrad grad = normalization_grad(saved);
  if (local.is_masked) grad.forward.relu = false;
  const Tensor& moments = saved.statistics.moments;
  kernels_of(saved).apply_grad(local.dy, grad, moments.defined() ? local.sums : Tensor(), moments,
                               saved.position_weights, saved.eps, dx);
  return dx;
}

}  // namespace tutti::nn
