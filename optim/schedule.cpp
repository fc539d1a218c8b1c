#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace tutti::optim {
namespace {

void expect_steps(const char* schedule, std::int64_t steps) {
  if (steps < 1) fail<ValueError>("{}: expected at least 1 step, got {}", schedule, steps);
}

// Interpolates between two values along a line or along half a cosine.
double along(double from, double to, double part, bool linear) {
  return linear ? from + (to - from) * part
                : to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

Schedule step_decay(StepDecay o) {
  expect_steps("step_decay", o.every);
  if (!(o.gamma >= 0)) fail<ValueError>("step_decay: gamma must be at least 0, got {}", o.gamma);
  return [o](std::int64_t step) { return std::pow(o.gamma, static_cast<double>(step / o.every)); };
}

Schedule multi_step(MultiStep o) {
  std::sort(o.milestones.begin(), o.milestones.end());
  if (!o.milestones.empty() && o.milestones.front() < 1)
    fail<ValueError>("multi_step: expected milestones of at least 1, got {}", o.milestones.front());
  if (!(o.gamma >= 0)) fail<ValueError>("multi_step: gamma must be at least 0, got {}", o.gamma);
  return [o = std::move(o)](std::int64_t step) {
    const auto passed = std::upper_bound(o.milestones.begin(), o.milestones.end(), step);
    return std::pow(o.gamma, static_cast<double>(passed - o.milestones.begin()));
  };
}

Schedule cosine(Cosine o) {
  expect_steps("cosine", o.steps);
  if (!(o.minimum >= 0)) fail<ValueError>("cosine: minimum must be at least 0, got {}", o.minimum);
  return [o](std::int64_t step) {
    return along(1, o.minimum,
                 static_cast<double>(std::min(step, o.steps)) / static_cast<double>(o.steps),
                 false);
  };
}

Schedule linear_warmup(LinearWarmup o, Schedule then) {
  expect_steps("linear_warmup", o.steps);
  if (!(o.start >= 0 && o.start <= 1))
    fail<ValueError>("linear_warmup: start must be in [0, 1], got {}", o.start);
  return [o, then = std::move(then)](std::int64_t step) {
    if (step < o.steps)
      return along(o.start, 1, static_cast<double>(step) / static_cast<double>(o.steps), true);
    return then ? then(step - o.steps) : 1.0;
  };
}

Schedule one_cycle(OneCycle o) {
  expect_steps("one_cycle", o.steps);
  if (!(o.warm_fraction >= 0 && o.warm_fraction <= 1))
    fail<ValueError>("one_cycle: warm_fraction must be in [0, 1], got {}", o.warm_fraction);
  if (!(o.div > 0 && o.final_div > 0))
    fail<ValueError>("one_cycle: div and final_div must be above 0, got {} and {}", o.div,
                     o.final_div);
  return [o, low = 1 / o.div, end = 1 / (o.div * o.final_div)](std::int64_t step) {
    const double last = static_cast<double>(o.steps - 1),
                 at = std::min(static_cast<double>(step), last);
    const double top = o.warm_fraction * static_cast<double>(o.steps) -
                       1;  // May lie between two steps.
    if (at <= top) return along(low, 1, top > 0 ? at / top : 1, o.linear);
    return along(1, end, last > top ? (at - top) / (last - top) : 1, o.linear);
  };
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule rate)
    : optimizer_(optimizer), rate_(std::move(rate)) {
  for (int g = 0; g < optimizer.group_count(); ++g)
    base_rates_.push_back(optimizer.learning_rate(g));
  set_position(0);
}

void Scheduler::set_position(std::int64_t position) {
  if (position < 0)
    fail<ValueError>("Scheduler: the position must be at least 0, got {}", position);
  apply(position, scale_);
}

void Scheduler::set_scale(double scale) {
  if (!(scale >= 0 && std::isfinite(scale)))
    fail<ValueError>("Scheduler: the scale must be a finite number of at least 0, got {}", scale);
  apply(position_, scale);
}

void Scheduler::apply(std::int64_t position, double scale) {
  const double factor = (rate_ ? rate_(position) : 1.0) * scale;
  std::vector<double> rates = base_rates_;
  for (double& rate : rates) rate *= factor;
  optimizer_.set_rates(rates, {});
  position_ = position;
  scale_ = scale;
}

}  // namespace tutti::optim
