// The backward of batch norm for one layer, and below it the steps that it takes.
#include "backward.h"

#include "../../core/create.h"

#include <utility>

namespace tutti::nn {
namespace {

std::vector<Tensor> backward_in_one_kernel(const BackwardContext& context, const Tensor& gradient);
void all_reduce(const BackwardContext& context, const Tensor& sums);

}  // namespace

std::vector<Tensor> batch_norm_backward(const BackwardContext& context, const Tensor& dy) {
  context.history->deferred_errors.throw_arrived();
  if (context.fits_one_kernel()) return backward_in_one_kernel(context, dy);

  // This rank's sums of dy and of dy (x - mean) of every channel give its share of the gradients of
  // weight and bias. One collective then adds the sums of all ranks, which the gradient of x needs.
  const LocalGradients local = local_gradients(context, dy);
  all_reduce(context, local.sums);

  const Tensor dx = input_gradient(context, local);
  return {dx, local.weight, local.bias, local.residual};
}

namespace {

const kernels::BatchNorm& kernels_of(const BackwardContext& context) {
  return kernels::batch_norm(context.x.get().device());
}

kernels::SavedForward saved_forward(const BackwardContext& context) {
  return {.normalization = {.mean = context.statistics.mean,
                            .rstd = context.statistics.rstd,
                            .weight = context.weight,
                            .bias = context.bias,
                            .residual = context.has_residual ? context.x.get() : Tensor(),
                            .relu = context.relu,
                            .mask = context.mask},
          .x = context.x,
          .output = context.y,
          .weighted = bool(context.position_weights)};
}

// Returns dy in the memory format of x, and allocates the outputs of the kernels. If nothing else
// holds dy, the gradient of x may overwrite it, because that memory is in the cache already.
LocalGradients allocate(const BackwardContext& context, const Tensor& gradient) {
  const Tensor& x = context.x;
  const NeededGradients& needed = context.needed;
  LocalGradients local;
  const MemoryFormat format = format_of(x);
  Tensor copy = gradient.is_contiguous(format) ? Tensor() : gradient.contiguous(format);
  const bool is_exclusive = (copy.defined() ? copy : gradient).is_exclusive();
  local.dy = copy.defined() ? std::move(copy) : gradient;

  local.is_masked = needed.residual && context.relu;
  local.can_overwrite_dy = is_exclusive && !needed.residual;
  if (needed.residual) local.residual = local.is_masked && !is_exclusive ? empty_like(x) : local.dy;
  if (needed.weight) local.weight = empty_like(context.weight.get());
  if (needed.bias) local.bias = empty_like(context.bias.get());
  if (needed.weight || needed.bias || context.all_reduces || local.is_masked ||
      (needed.input && context.statistics.moments.defined()))
    local.sums = empty({kernels::packet_size(x.size(1))}, {float64, x.device()});
  return local;
}

// Computes sums and gradients in one kernel, for a batch of this rank alone.
std::vector<Tensor> backward_in_one_kernel(const BackwardContext& context, const Tensor& gradient) {
  const LocalGradients local = allocate(context, gradient);
  const Tensor dx = local.can_overwrite_dy ? local.dy : empty_like(context.x.get());
  kernels_of(context).backward({.dy = local.dy,
                                .saved = saved_forward(context),
                                .moments = context.statistics.moments,
                                .position_weights = context.position_weights,
                                .eps = context.eps,
                                .sums = local.sums,
                                .masked_dy = local.is_masked ? local.residual : Tensor(),
                                .weight_grad = local.weight,
                                .bias_grad = local.bias,
                                .dx = dx});
  return {dx, local.weight, local.bias, local.residual};
}

void all_reduce(const BackwardContext& context, const Tensor& sums) {
  if (!context.all_reduces) return;
  distributed::Work work = start_all_reduce(sums, context.id, Phase::backward);
  autograd::compute_deferred_gradients();  // A convolution's weight gradient, for example.
  work.wait();
  checked_or_assumed_header(sums, context.id, Phase::backward);
}

// Calls launch(report), which launches a kernel that reads the sums over all ranks if there are
// such sums, and then reports their header.
void launch_reporting(const BackwardContext& context,
                      const std::function<void(kernels::HeaderReport*)>& launch) {
  if (!context.all_reduces) return launch(nullptr);
  const Tensor& x = context.x;
  context.history->deferred_errors.report(
      x.device(), {.id = context.id, .phase = Phase::backward, .input = x.shape()}, launch);
}

}  // namespace

BackwardContext::BackwardContext(const Call& call, const Output& output)
    : x(call.x),
      weight(output.normalization.weight),
      bias(output.normalization.bias),
      position_weights(call.position_weights),
      mask(output.normalization.mask),
      statistics(output.statistics),
      eps(call.args.eps),
      relu(call.args.relu),
      has_residual(call.args.residual.defined()),
      needed(call.needed),
      id(call.id),
      all_reduces(call.is_synchronized && output.statistics.input_gradient_needed),
      history(call.history) {
  if (relu && has_residual && !mask.defined()) y = output.y;
  id.number = statistics.call_number;
}

bool BackwardContext::fits_one_kernel() const {
  return needed.input && statistics.moments.defined() && !all_reduces;
}

LocalGradients local_gradients(const BackwardContext& context, const Tensor& dy) {
  LocalGradients local = allocate(context, dy);
  if (!local.sums.defined()) return local;
  kernels_of(context).gradient_sums(
      {.dy = local.dy,
       .saved = saved_forward(context),
       .header = context.all_reduces ? make_header(context.id, Phase::backward, local.sums.numel())
                                     : kernels::PacketHeader(),
       .sums = local.sums,
       .masked_dy = local.is_masked ? local.residual : Tensor(),
       .weight_grad = local.weight,
       .bias_grad = local.bias});
  if (local.is_masked) local.dy = local.residual;
  return local;
}

Tensor input_gradient(const BackwardContext& context, const LocalGradients& local) {
  if (!context.needed.input) {
    launch_reporting(context, [&](kernels::HeaderReport* report) {
      if (report) kernels_of(context).report_header(local.sums, report);
    });
    return {};
  }
  const Tensor dx = local.can_overwrite_dy ? local.dy : empty_like(context.x.get());
  kernels::SavedForward saved = saved_forward(context);
  if (local.is_masked) {  // dy has passed through the ReLU already
    saved.normalization.relu = false;
    saved.normalization.mask = {};
  }
  const Tensor& moments = context.statistics.moments;
  launch_reporting(context, [&](kernels::HeaderReport* report) {
    kernels_of(context).apply_grad({.dy = local.dy,
                                    .saved = saved,
                                    .sums = moments.defined() ? local.sums : Tensor(),
                                    .moments = moments,
                                    .position_weights = context.position_weights,
                                    .eps = context.eps,
                                    .dx = dx,
                                    .report = report});
  });
  return dx;
}

}  // namespace tutti::nn
