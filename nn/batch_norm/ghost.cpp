#include "ghost.h"

#include "../../autograd/functions.h"
#include "../../core/create.h"
#include "backward.h"

#include <algorithm>

namespace tutti::nn {
namespace {

struct Part {
  std::int64_t begin, end;
  Call call;
};

struct BackwardPart {
  std::int64_t begin, end;
  BackwardContext context;
};

Tensor slice(const Tensor& whole, std::int64_t begin, std::int64_t end) {
  return whole.defined() ? whole.slice(0, begin, end) : Tensor();
}

void check_last_part(const Tensor& x, const BatchNormArgs& args, std::int64_t size) {
  const std::int64_t last = x.size(0) % size, channels = std::max<std::int64_t>(1, x.size(1));
  if (last > 0 && last * x.numel() == channels * x.size(0))
    fail<ShapeError>(
        "{}: the last ghost batch of input {} would have 1 value per channel, of which there is no "
        "variance; drop the last samples, or take another ghost_batch_size than {}",
        args.name, to_string(x.shape()), size);
}

// Checks the sum of a part's position weights on the CPU. On a device the host would have to wait
// for it; there the device itself checks it later (see batch_norm).
void check_weight_sum(const Call& call) {
  const Tensor& weights = call.position_weights;
  if (weights.defined() && weights.device().is_cpu())
    expect_variance({.count = sum(weights.to(float64)).item<double>()}, call.id, call.x.shape());
}

// Returns the parts in order. Throws before any of them has changed something.
std::vector<Part> checked_parts(const Tensor& x, const BatchNormArgs& args,
                                const std::shared_ptr<CallHistory>& history, std::int64_t size) {
  checked_call(x, args, history);
  check_last_part(x, args, size);
  std::vector<Part> parts;
  for (std::int64_t begin = 0; begin < x.size(0); begin += size) {
    const std::int64_t end = std::min(begin + size, x.size(0));
    BatchNormArgs own = args;
    own.residual = slice(args.residual, begin, end);
    own.position_weights = slice(args.position_weights, begin, end);
    parts.push_back({begin, end, checked_call(x.slice(0, begin, end), own, history)});
    check_weight_sum(parts.back().call);
  }
  return parts;
}

// Maps the gradient of the whole output to those of x, weight, bias and residual.
std::vector<Tensor> ghost_backward(const std::vector<BackwardPart>& parts, const Tensor& dy) {
  std::vector<Tensor> input, residual;
  Tensor weight, bias;
  const auto add = [](Tensor& sum, const Tensor& term) {
    if (!term.defined()) return;
    if (sum.defined()) sum.add_(term);
    else sum = term;
  };
  for (const BackwardPart& part : parts) {
    const std::vector<Tensor> gradients =
        batch_norm_backward(part.context, dy.slice(0, part.begin, part.end));
    if (gradients[0].defined()) input.push_back(gradients[0]);
    if (gradients[3].defined()) residual.push_back(gradients[3]);
    add(weight, gradients[1]);
    add(bias, gradients[2]);
  }
  const auto joined = [&](const std::vector<Tensor>& slices) {
    if (slices.empty()) return Tensor();
    const Tensor& first = slices.front();
    const Tensor whole = empty(dy.shape(), {first.dtype(), first.device()}, first.memory_format());
    for (std::size_t i = 0; i < parts.size(); ++i)
      whole.slice(0, parts[i].begin, parts[i].end).copy_(slices[i]);
    return whole;
  };
  return {joined(input), weight, bias, joined(residual)};
}

}  // namespace

Tensor ghost_batch_norm(const Tensor& x, const BatchNormArgs& args,
                        const std::shared_ptr<CallHistory>& history, std::int64_t size) {
  if (x.rank() < 2 || x.size(0) <= size) return batch_norm(x, args, history);
  const Tensor y = empty_like(x.detach());
  std::vector<BackwardPart> parts;
  for (const auto& [begin, end, call] : checked_parts(x, args, history, size)) {
    observe(call);
    const Output output = compute_output(call);
    y.slice(0, begin, end).copy_(output.y);
    parts.push_back({begin, end, BackwardContext(call, output)});
  }
  return autograd::record(
      "ghost_batch_norm", y, {x, args.weight, args.bias, args.residual},
      [parts = std::move(parts)](const Tensor& dy) { return ghost_backward(parts, dy); });
}

}  // namespace tutti::nn
