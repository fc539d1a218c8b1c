// The backward of batch norm for one layer, and below it the steps that it takes.
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "call.h"

#include <utility>

namespace tutti::nn {
namespace {

// The state that a forward saves for its backward.
struct BackwardContext {
  const kernels::BatchNorm& kernels;
  autograd::Saved x, weight, bias, position_weights;
  // The output, from which the backward reads where the ReLU after a residual passed values. Empty
  // on devices that store that as a mask, or if there is no such ReLU.
  autograd::Saved y;
  kernels::Normalization normalization;  // but weight, bias and residual
  Tensor moments;                        // as in Output
  kernels::Epsilon eps;
  bool has_residual = false;
  NeededGradients needed;
  CallId id;                 // the call that computed the statistics
  bool all_reduces = false;  // whether the backward adds its sums over the ranks of id.group
  std::shared_ptr<CallHistory> history;
  std::shared_ptr<autograd::Recipe> recipe;  // of the output; null if there is none

  BackwardContext(const Call& call, const Output& output);
};

// The results of the first half of the backward, which needs no other rank.
struct LocalGradients {
  Tensor dy;               // the gradient of the output, dense
  bool is_masked = false;  // whether dy has been set to 0 where the ReLU passed nothing
  // Whether nothing else holds dy, so that the gradient of x may replace it.
  bool can_overwrite_dy = false;
  Tensor sums;  // the packet of this rank's gradient sums; undefined if not needed
  Tensor weight, bias, residual;  // gradients; undefined if not needed
};

LocalGradients local_gradients(const BackwardContext& context, const Tensor& dy);
Tensor input_gradient(const BackwardContext& context, const LocalGradients& local);

// Maps the gradient of the output to the gradients of x, weight, bias and residual; undefined where
// none is needed. Collective if `context.all_reduces`.
std::vector<Tensor> batch_norm_backward(const BackwardContext& context, const Tensor& dy) {
  context.history->deferred_errors.throw_arrived();
  // This rank's sums of dy and of dy (x - mean) of every channel give its share of the gradients of
  // weight and bias. One collective then adds the sums of all ranks, which the gradient of x needs.
  const LocalGradients local = local_gradients(context, dy);
  // What is deferred until then is, for example, a convolution's weight gradient.
  if (context.all_reduces)
    all_reduce_packet(local.sums, context.id, Phase::backward, true,
                      autograd::compute_deferred_gradients);
  return {input_gradient(context, local), local.weight, local.bias, local.residual};
}

kernels::SavedForward saved_forward(const BackwardContext& context) {
  kernels::SavedForward saved{.normalization = context.normalization,
                              .x = context.x,
                              .output = context.y,
                              .weighted = bool(context.position_weights)};
  saved.normalization.weight = context.weight;
  saved.normalization.bias = context.bias;
  if (context.has_residual) saved.normalization.residual = saved.x;
  return saved;
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

  local.is_masked = needed.residual && context.normalization.relu;
  local.can_overwrite_dy = is_exclusive && !needed.residual;
  if (needed.residual) local.residual = local.is_masked && !is_exclusive ? empty_like(x) : local.dy;
  if (needed.weight) local.weight = empty_like(context.weight.get());
  if (needed.bias) local.bias = empty_like(context.bias.get());
  if (needed.weight || needed.bias || context.all_reduces || local.is_masked ||
      (needed.input && context.moments.defined()))
    local.sums = empty({kernels::packet_size(x.size(1))}, {float64, x.device()});
  return local;
}

// Makes the output one that is computed again from what the backward keeps in any case, and from
// the residual. Statistics are not computed again, so that no rank waits for another.
std::shared_ptr<autograd::Recipe> output_recipe(const Call& call, const Output& output) {
  if (!call.args.recompute_output || !call.needed.any()) return nullptr;
  kernels::Normalization of = output.normalization;
  const std::vector<autograd::Saved> inputs{call.x, of.residual, of.weight, of.bias};
  of.residual = of.weight = of.bias = of.mask = {};
  return autograd::set_recipe(output.y, call.id.name, inputs,
                              [&kernels = call.kernels(), of](const std::vector<Tensor>& from) {
                                kernels::Normalization to = of;
                                to.residual = from[1];
                                to.weight = from[2];
                                to.bias = from[3];
                                const Tensor y = empty_like(from[0]);
                                kernels.apply(from[0], to, y);
                                return y;
                              });
}

BackwardContext::BackwardContext(const Call& call, const Output& output)
    : kernels(call.kernels()),
      x(call.x),
      weight(output.normalization.weight),
      bias(output.normalization.bias),
      position_weights(call.position_weights),
      normalization(output.normalization),
      moments(output.moments),
      eps(call.args.eps),
      has_residual(call.args.residual.defined()),
      needed(call.needed),
      id(call.id),
      all_reduces(call.is_synchronized && output.input_gradient_needed),
      history(call.history),
      recipe(output_recipe(call, output)) {
  normalization.weight = normalization.bias = normalization.residual = {};
  if (normalization.relu && has_residual && !normalization.mask.defined()) y = output.y;
}

// Computes this rank's sums and the gradients that need no other rank.
LocalGradients local_gradients(const BackwardContext& context, const Tensor& dy) {
  LocalGradients local = allocate(context, dy);
  if (!local.sums.defined()) return local;
  context.kernels.gradient_sums(
      {.dy = local.dy,
       .saved = saved_forward(context),
       .header = context.all_reduces && !local.dy.device().is_cpu()
                     ? make_header(context.id, Phase::backward, local.sums.numel())
                     : kernels::PacketHeader(),
       .sums = local.sums,
       .masked_dy = local.is_masked ? local.residual : Tensor(),
       .weight_grad = local.weight,
       .bias_grad = local.bias});
  if (local.is_masked) local.dy = local.residual;
  return local;
}

// Computes the gradient of x from the sums over all ranks; undefined if it is not needed.
Tensor input_gradient(const BackwardContext& context, const LocalGradients& local) {
  const Tensor &x = context.x, &moments = context.moments;
  if (!context.needed.input && !context.all_reduces) return {};
  Tensor dx;
  if (context.needed.input) dx = local.can_overwrite_dy ? local.dy : empty_like(x);
  kernels::SavedForward saved = saved_forward(context);
  if (local.is_masked) {  // dy has passed through the ReLU already
    saved.normalization.relu = false;
    saved.normalization.mask = {};
  }
  const auto launch = [&](kernels::HeaderReport* report) {
    context.kernels.apply_grad({.dy = local.dy,
                                .saved = saved,
                                .sums = moments.defined() ? local.sums : Tensor(),
                                .moments = moments,
                                .position_weights = context.position_weights,
                                .eps = context.eps,
                                .dx = dx,
                                .report = report});
  };
  const auto packet_call = [&] {
    return PacketCall{.id = context.id, .phase = Phase::backward, .input = x.shape()};
  };
  if (!context.all_reduces || x.device().is_cpu()) launch(nullptr);
  else context.history->deferred_errors.report(x.device(), packet_call, launch);
  return dx;
}

}  // namespace

Tensor record_backward(const Call& call, const Output& output) {
  BackwardContext context(call, output);
  const bool waits = context.all_reduces;
  autograd::record("batch_norm", output.y,
                   {call.input, call.args.weight, call.args.bias, call.args.residual},
                   [context = std::move(context)](const Tensor& dy) {
                     return batch_norm_backward(context, dy);
                   });
  if (waits)
    autograd::mark_waits_for_ranks(output.y,
                                   call.id.group->for_normalization().implementation().get());
  return output.y;
}

}  // namespace tutti::nn
