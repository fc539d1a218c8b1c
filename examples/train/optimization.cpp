#include "optimization.h"

#include "checkpoint.h"

#include <tutti/core/trace.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include <algorithm>
#include <type_traits>

namespace tutti::examples {

namespace {

// The learning rate of the first step of a warm-up, as a part of its last one: the value that
// PyTorch's references/classification uses (--lr-warmup-decay).
constexpr double warmup_start = 0.01;

bool schedules_momentum(const OptimizerOptions& o, const ScheduleOptions& schedule) {
  return (o.name == "sgd" || o.name == "lars") && o.momentum == 0 && schedule.name == "one_cycle";
}

// Returns the parameters as one group, or as two: `exempt` changes the options of the second one.
template <class Options, class Exempt>
std::vector<optim::ParameterGroup<Options>> groups_of(const std::vector<Tensor>& parameters,
                                                      bool norm_decay, const Options& options,
                                                      const Exempt& exempt) {
  if (norm_decay) return {{parameters, options}};
  optim::ParameterGroup<Options> decayed{{}, options}, exempted{{}, options};
  exempt(exempted.options);
  for (const Tensor& parameter : parameters)
    (parameter.rank() <= 1 ? exempted : decayed).parameters.push_back(parameter);
  std::vector<optim::ParameterGroup<Options>> groups{std::move(decayed), std::move(exempted)};
  std::erase_if(groups, [](const auto& group) { return group.parameters.empty(); });
  return groups;
}

template <class Method, class Options>
std::unique_ptr<optim::Optimizer> make(const std::vector<Tensor>& parameters, bool norm_decay,
                                       const Options& options) {
  return std::make_unique<Method>(groups_of(parameters, norm_decay, options, [](Options& o) {
    o.weight_decay = 0;
    if constexpr (std::is_same_v<Method, optim::LARS>) o.adapt = false;
  }));
}

}  // namespace

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd", "adam", "adamw", "lars"};
  return names;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names{"one_cycle", "cosine", "steps", "constant",
                                              "plateau"};
  return names;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o,
                                                 const ScheduleOptions& schedule,
                                                 const std::vector<Tensor>& parameters) {
  const double momentum = schedules_momentum(o, schedule) ? 0.95 : o.momentum;
  if (o.name == "sgd")
    return make<optim::SGD>(parameters, o.norm_decay,
                            optim::SGD::Options{.lr = o.lr,
                                                .momentum = momentum,
                                                .weight_decay = o.weight_decay,
                                                .nesterov = o.nesterov && momentum > 0});
  if (o.name == "adam")
    return make<optim::Adam>(parameters, o.norm_decay,
                             optim::Adam::Options{.lr = o.lr, .weight_decay = o.weight_decay});
  if (o.name == "adamw")
    return make<optim::AdamW>(parameters, o.norm_decay,
                              optim::AdamW::Options{.lr = o.lr, .weight_decay = o.weight_decay});
  if (o.name == "lars")
    return make<optim::LARS>(
        parameters, o.norm_decay,
        optim::LARS::Options{.lr = o.lr, .momentum = momentum, .weight_decay = o.weight_decay});
  fail<ValueError>("unknown optimizer '{}'", o.name);
}

std::int64_t warmup_steps(const ScheduleOptions& o, const RunLength& length) {
  return o.warmup * length.steps_per_epoch;
}

optim::Schedule make_schedule(const ScheduleOptions& o, const RunLength& length) {
  if (o.name == "one_cycle") return optim::one_cycle({.steps = length.steps});
  const std::int64_t warmup = warmup_steps(o, length);
  optim::Schedule schedule;  // a factor of 1
  if (o.name == "cosine") {
    // --max-steps may end the run within the warm-up.
    schedule = optim::cosine({.steps = std::max<std::int64_t>(length.steps - warmup, 1)});
  } else if (o.name == "steps") {
    // Milestones are epochs of the run; the schedule counts its steps from the end of the warm-up.
    std::vector<std::int64_t> milestones;
    for (const std::int64_t epoch : o.milestones)
      milestones.push_back(epoch * length.steps_per_epoch - warmup);
    schedule = optim::multi_step({.milestones = std::move(milestones), .gamma = o.gamma});
  } else if (o.name != "constant" && o.name != "plateau") {
    fail<ValueError>("unknown schedule '{}'", o.name);
  }
  if (warmup == 0) return schedule;
  return optim::linear_warmup({.steps = warmup, .start = warmup_start}, std::move(schedule));
}

optim::Schedule make_momentum_schedule(const OptimizerOptions& o, const ScheduleOptions& schedule,
                                       const RunLength& length) {
  if (!schedules_momentum(o, schedule)) return {};
  return optim::one_cycle_momentum({.steps = length.steps});
}

// ---- optimization

Optimization::Optimization(std::vector<Tensor> parameters, const TrainOptions& o,
                           const RunLength& length)
    : optimizer_(make_optimizer(o.optimizer, o.schedule, parameters)),
      schedule_(*optimizer_, make_schedule(o.schedule, length),
                make_momentum_schedule(o.optimizer, o.schedule, length)),
      clip_norm_(o.optimizer.clip_norm) {
  if (o.schedule.name == "plateau")
    plateau_.emplace(optim::ReduceOnPlateau::Options{.gamma = o.schedule.gamma,
                                                     .patience = o.schedule.plateau_patience});
  if (o.precision == float16) scaler_.emplace();
}

void Optimization::backward(const Tensor& loss) {
  (scaler_ ? scaler_->scale(loss) : loss).backward();
}

void Optimization::update() {
  const trace::Span span("optimizer");
  if (clip_norm_ > 0) {
    if (scaler_) scaler_->unscale_(*optimizer_);
    optim::clip_grad_norm(optimizer_->parameters(), clip_norm_);
  }
  if (!scaler_) return optimizer_->step();
  scaler_->step(*optimizer_);
  scaler_->update();
}

void Optimization::end_epoch(double test_loss) {
  if (plateau_ && plateau_->update(test_loss)) schedule_.set_scale(plateau_->factor());
}

void Optimization::restore(const Checkpoint& checkpoint) {
  if (!scaler_ && !checkpoint.scaler.empty())
    fail<CheckpointError>("it has a loss scale, which only a run in float16 has");
  if (!plateau_ && !checkpoint.plateau.empty())
    fail<CheckpointError>("it has the state of a schedule that only --schedule plateau has");
  // Loading is tried on a copy, so that a refusal changes nothing.
  std::optional<optim::ReduceOnPlateau> plateau = plateau_;
  if (plateau) plateau->load_state_dict(checkpoint.plateau);
  const optim::OptimizerState before = optimizer_->state_dict();
  optimizer_->load_state_dict(checkpoint.optimizer);
  try {
    if (scaler_) scaler_->load_state_dict(checkpoint.scaler);
  } catch (...) {
    optimizer_->load_state_dict(before);
    throw;
  }
  plateau_ = plateau;
  if (plateau_) schedule_.set_scale(plateau_->factor());
  schedule_.set_position(std::max<std::int64_t>(checkpoint.step - 1, 0));
  last_rate_ = optimizer_->learning_rate();
  schedule_.set_position(checkpoint.step);
}

}  // namespace tutti::examples
