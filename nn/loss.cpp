#include "loss.h"

namespace tutti::nn {
namespace {

const char* name_of(LossReduction reduction) {
  switch (reduction) {
    case LossReduction::mean: return "mean";
    case LossReduction::sum: return "sum";
    case LossReduction::none: return "none";
  }
  return "";
}

}  // namespace

CrossEntropyLoss::CrossEntropyLoss(const Options& options) : options_(options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<ValueError>("CrossEntropyLoss: expected label_smoothing from 0 to 1, got {}",
                     options.label_smoothing);
}

Tensor CrossEntropyLoss::operator()(const Tensor& logits, const Tensor& targets) const {
  return cross_entropy(logits, targets, options_);
}

std::string CrossEntropyLoss::describe() const {
  return fmt::format("reduction={}, ignore_index={}, label_smoothing={}",
                     name_of(options_.reduction), options_.ignore_index, options_.label_smoothing);
}

Tensor MSELoss::operator()(const Tensor& input, const Tensor& target) const {
  return mse_loss(input, target, options_.reduction);
}

std::string MSELoss::describe() const {
  return fmt::format("reduction={}", name_of(options_.reduction));
}

}  // namespace tutti::nn
