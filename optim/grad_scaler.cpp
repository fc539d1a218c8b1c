#include "grad_scaler.h"

#include "../autograd/functions.h"
#include "../autograd/grad_mode.h"
#include "../core/create.h"
#include "../core/cuda/graph.h"
#include "../kernels/kernels.h"
#include "common.h"

#include <limits>

namespace tutti::optim {
namespace {

constexpr double largest = std::numeric_limits<float>::max(),
                 smallest = std::numeric_limits<float>::denorm_min(),
                 most_steps = 0x1p24;  // The tracker is float32.

// Returns why these numbers cannot be used; empty if they can.
std::string problem(double scale, const GradScaler::Options& o) {
  if (!(scale >= smallest && scale <= largest))
    return fmt::format("the scale must be above 0 and finite in float32, got {}", scale);
  if (!(o.growth_factor > 1 && o.growth_factor <= largest))
    return fmt::format("growth_factor must be above 1 and finite, got {}", o.growth_factor);
  if (!(o.backoff_factor > 0 && o.backoff_factor < 1))
    return fmt::format("backoff_factor must be above 0 and below 1, got {}", o.backoff_factor);
  if (o.growth_interval < 1 || static_cast<double>(o.growth_interval) > most_steps)
    return fmt::format("growth_interval must be 1 to {}, got {}", most_steps, o.growth_interval);
  return {};
}

}  // namespace

GradScaler::GradScaler(Options options)
    : options_(options), scale_(scalar(options.init_scale)), tracker_(zeros({})) {
  if (const std::string text = problem(options.init_scale, options); !text.empty())
    fail<ValueError>("GradScaler: {}", text);
}

void GradScaler::move_to(Device device) {
  scale_ = scale_.to(device);
  tracker_ = tracker_.to(device);
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!is_floating(loss.dtype()))
    fail<DTypeError>("GradScaler: expected a loss of a floating dtype, got {}",
                     to_string(loss.dtype()));
  move_to(loss.device());
  return loss * scale_.to(loss.dtype());
}

void GradScaler::unscale_(Optimizer& optimizer) {
  const NoGrad no_grad;
  Verdict& verdict = verdicts_[&optimizer];
  if (verdict.unscaled)
    fail<Error>(
        "GradScaler: the gradients of this optimizer were already unscaled since the last "
        "update()");
  const std::vector<Tensor> gradients = dense_gradients("GradScaler", optimizer.parameters());
  for (const Tensor& g : gradients)
    if (g.dtype() == float16)
      fail<DTypeError>(
          "GradScaler: gradients in float16 cannot be unscaled, they would underflow; keep "
          "parameters in float32 and compute in float16 through Autocast");
  const Device device = gradients.empty() ? scale_.device() : gradients.front().device();
  move_to(device);
  if (!verdict.found_inf.defined() || verdict.found_inf.device() != device)
    verdict.found_inf = empty({}, {.device = device});
  verdict.found_inf.zero_();
  kernels::on(device).optimizer.unscale(gradients, scale_, verdict.found_inf);
  for (const Tensor& g : gradients) g.storage()->bump_version();
  verdict.unscaled = true;
}

void GradScaler::step(Optimizer& optimizer) {
  if (verdicts_[&optimizer].stepped)
    fail<Error>("GradScaler: step() was already called for this optimizer since the last update()");
  if (!verdicts_[&optimizer].unscaled) unscale_(optimizer);
  try {
    optimizer.step(verdicts_[&optimizer].found_inf);
  } catch (...) {
    // A capture that fails has not unscaled the gradients either.
    if (cuda::is_capturing(scale_.device())) verdicts_[&optimizer].unscaled = false;
    throw;
  }
  verdicts_[&optimizer].stepped = true;
}

void GradScaler::update() {
  const NoGrad no_grad;
  Tensor found;
  for (auto& [optimizer, verdict] : verdicts_) {
    if (!verdict.unscaled) continue;
    const Tensor here = verdict.found_inf.to(scale_.device());
    found = found.defined() ? found + here : here;
    verdict.unscaled = verdict.stepped = false;
  }
  if (!found.defined())
    fail<Error>("GradScaler: update() without a step() or unscale_() since the last one");
  const Tensor overflow = gt(found, 0), zero = zeros_like(tracker_);
  const Tensor good = where(overflow, zero, tracker_ + 1.0),
               due = ge(good, static_cast<double>(options_.growth_interval));
  const Tensor grown = scale_ * options_.growth_factor;
  const Tensor larger = where(le(grown, largest), grown, scale_);
  scale_.copy_(where(overflow, scale_ * options_.backoff_factor, where(due, larger, scale_)));
  tracker_.copy_(where(due, zero, good));
}

double GradScaler::current_scale() const { return scale_.item<double>(); }

StateDict GradScaler::state_dict() const {
  return number_state({{"scale", current_scale()},
                       {"growth_tracker", tracker_.item<double>()},
                       {"growth_factor", options_.growth_factor},
                       {"backoff_factor", options_.backoff_factor},
                       {"growth_interval", static_cast<double>(options_.growth_interval)}});
}

void GradScaler::load_state_dict(const StateDict& state) {
  const auto numbers = read_numbers("GradScaler", state,
                                    {{.name = "scale"},
                                     {"growth_tracker", 0, most_steps, true},
                                     {.name = "growth_factor"},
                                     {.name = "backoff_factor"},
                                     {"growth_interval", 1, most_steps, true}});
  const double scale = numbers.at("scale"), tracker = numbers.at("growth_tracker"),
               interval = numbers.at("growth_interval");
  const Options options{.init_scale = options_.init_scale,
                        .growth_factor = numbers.at("growth_factor"),
                        .backoff_factor = numbers.at("backoff_factor"),
                        .growth_interval = static_cast<std::int64_t>(interval)};
  if (const std::string text = problem(scale, options); !text.empty())
    fail<CheckpointError>("GradScaler state: {}", text);
  if (tracker > interval)
    fail<CheckpointError>("GradScaler state: growth_tracker must be at most {}, got {}", interval,
                          tracker);
  options_ = options;
  const NoGrad no_grad;
  scale_.fill_(scale);
  tracker_.fill_(tracker);
}

}  // namespace tutti::optim
