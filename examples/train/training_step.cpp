#include "training_step.h"

#include "checkpoint.h"
#include "training_batches.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/nn/functional/interpolate.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/segmentation.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace tutti::examples {

namespace {

// The learning rate of the first step of a warm-up, as a part of its last one: the value that
// PyTorch's references/classification uses (--lr-warmup-decay).
constexpr double warmup_start = 0.01;

// Makes an optimizer of one to four groups: of the heads and of the backbone, and of each the
// parameters without decay.
template <class Method, class Options>
std::unique_ptr<optim::Optimizer> make(const std::vector<Tensor>& parameters,
                                       std::size_t of_backbone, const OptimizerOptions& o,
                                       const Options& options) {
  std::vector<optim::ParameterGroup<Options>> groups(4, {{}, options});
  for (std::size_t g = 0; g < 4; ++g) {
    if (g >= 2) groups[g].options.lr *= o.backbone_lr;
    if (g % 2 == 0) continue;
    groups[g].options.weight_decay = 0;
    if constexpr (std::is_same_v<Method, optim::LARS>) groups[g].options.adapt = false;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_exempt = !o.norm_decay && parameters[i].rank() <= 1;
    groups[(i < of_backbone ? 2 : 0) + (is_exempt ? 1 : 0)].parameters.push_back(parameters[i]);
  }
  std::erase_if(groups, [](const auto& group) { return group.parameters.empty(); });
  return std::make_unique<Method>(groups);
}

}  // namespace

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd", "adam", "adamw", "lars"};
  return names;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names{"one_cycle", "cosine",   "poly",
                                              "steps",     "constant", "plateau"};
  return names;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o,
                                                 const std::vector<Tensor>& parameters,
                                                 std::size_t of_backbone) {
  if (o.name == "sgd")
    return make<optim::SGD>(parameters, of_backbone, o,
                            optim::SGD::Options{.lr = o.lr,
                                                .momentum = o.momentum,
                                                .weight_decay = o.weight_decay,
                                                .nesterov = o.nesterov && o.momentum > 0});
  if (o.name == "adam")
    return make<optim::Adam>(parameters, of_backbone, o,
                             optim::Adam::Options{.lr = o.lr, .weight_decay = o.weight_decay});
  if (o.name == "adamw")
    return make<optim::AdamW>(parameters, of_backbone, o,
                              optim::AdamW::Options{.lr = o.lr, .weight_decay = o.weight_decay});
  if (o.name == "lars")
    return make<optim::LARS>(
        parameters, of_backbone, o,
        optim::LARS::Options{.lr = o.lr, .momentum = o.momentum, .weight_decay = o.weight_decay});
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
  } else if (o.name == "poly") {
    schedule = [steps = std::max<std::int64_t>(length.steps - warmup, 1)](std::int64_t step) {
      return std::pow(1 - static_cast<double>(std::min(step, steps)) / static_cast<double>(steps),
                      0.9);
    };
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

// ---- optimization

Optimization::Optimization(std::vector<Tensor> parameters, const TrainOptions& o,
                           const RunLength& length, std::size_t of_backbone)
    : optimizer_(make_optimizer(o.optimizer, parameters, of_backbone)),
      schedule_(*optimizer_, make_schedule(o.schedule, length)),
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

// ---- training step

namespace {

// Returns part `index` of `count` parts of a batch, whose sizes differ by at most one. Its
// global_size stays that of the whole batch, by which losses are divided.
data::Batch part_of(const data::Batch& batch, std::int64_t index, std::int64_t count) {
  if (count == 1) return batch;
  const std::int64_t size = batch.images.size(0), begin = size * index / count,
                     end = size * (index + 1) / count;
  data::Batch part{.images = batch.images.slice(0, begin, end),
                   .labels = batch.labels.slice(0, begin, end)};
  if (batch.soft_labels.defined()) part.soft_labels = batch.soft_labels.slice(0, begin, end);
  part.global_size = batch.global_size;
  return part;
}

}  // namespace

void TrainingStep::run(const data::Batch& batch) {
  parts_.optimization.zero_grad();
  const Tensor labels = count_labels(batch);
  const std::int64_t count =
      micro_batches(parts_.options, parts_.data_parallel.group().size(), batch.global_size);
  for (std::int64_t i = 0; i + 1 < count; ++i) {
    const auto no_sync = parts_.data_parallel.no_sync();
    compute_gradients(part_of(batch, i, count), labels);
  }
  compute_gradients(part_of(batch, count - 1, count), labels);
  parts_.optimization.update();
}

// Small logits answer for the pixels around theirs, because those of all pixels together would take
// as much memory as the loss.
TrainingStep::Forward TrainingStep::forward(const data::Batch& batch) const {
  const trace::Span span("forward");
  const bool is_mixed = batch.soft_labels.defined(), segments = batch.labels.rank() == 3;
  const Tensor& labels = is_mixed ? batch.soft_labels : batch.labels;
  const nn::CrossEntropyOptions how{.reduction = nn::LossReduction::sum,
                                    .ignore_index = segments ? no_class : -100,
                                    .label_smoothing = parts_.options.augmentation.label_smoothing};
  auto* const with_heads = dynamic_cast<nn::SegmentationNetwork*>(&parts_.net);
  if (!with_heads) {
    const Tensor logits = parts_.net(batch.images);
    return {nn::cross_entropy(logits, labels, how), argmax(logits.detach(), 1)};
  }
  const auto logits = with_heads->logits(batch.images);
  const Tensor answers = argmax(logits.main.detach(), 1).to(float32).unsqueeze(1),
               all = nn::interpolate(answers, {.size = {labels.size(1), labels.size(2)}});
  return {with_heads->loss(logits, labels, how, parts_.options.segmentation.auxiliary),
          all.select(1, 0).to(int64)};
}

// Returns the number of pixels of the global batch that have a class, at least 1, which only the
// masks of all ranks together tell. Undefined where each image has a label.
Tensor TrainingStep::count_labels(const data::Batch& batch) const {
  if (parts_.options.task == Task::classification) return {};
  const Tensor labels = sum(ne(batch.labels, no_class)).to(float64);
  parts_.data_parallel.group()
      .all_reduce(labels, distributed::ReduceOp::sum, {.name = "labels of the batch"})
      .wait();
  return clamp(labels, 1, {});
}

void TrainingStep::compute_gradients(const data::Batch& batch, const Tensor& labels) {
  const auto [loss_sum, answers] = forward(batch);
  // DataParallel averages over the ranks. With this factor the average is the gradient of the mean
  // loss over the labels of the global batch.
  const auto ranks = static_cast<double>(parts_.data_parallel.group().size());
  parts_.optimization.backward(labels.defined()
                                   ? loss_sum * (ranks / labels).to(loss_sum.dtype())
                                   : loss_sum * (ranks / static_cast<double>(batch.global_size)));
  // Of a mixed image the answer that counts is the class that it shows most of.
  // A loss that is not finite ends the run, so that logits need no look of their own.
  parts_.sums.add(loss_sum, answers,
                  batch.soft_labels.defined() ? argmax(batch.soft_labels, 1) : batch.labels);
}

}  // namespace tutti::examples
