#include "recipe.h"

namespace tutti::examples {
namespace {

// Sets an option that no flag has set.
template <class T, class Value>
void set(T& option, const Value& value, const char* flag, const FlagGiven& is_given) {
  if (!is_given(flag)) option = value;
}

}  // namespace

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> names{"imagenet"};
  return names;
}

// Learning rate and weight decay of adam and adamw are the defaults of their classes in optim/.
// Those of sgd are the defaults of OptimizerOptions, and lars takes sgd's.
void set_optimizer_defaults(TrainOptions& options, const FlagGiven& is_given) {
  OptimizerOptions& o = options.optimizer;
  const bool is_adam = o.name == "adam" || o.name == "adamw";
  if (is_adam) {
    set(o.lr, 1e-3, "--lr", is_given);
    set(o.weight_decay, o.name == "adam" ? 0 : 1e-2, "--weight-decay", is_given);
    set(o.momentum, 0, "--momentum", is_given);
  }
  if (o.name != "sgd") set(o.nesterov, false, "--nesterov", is_given);
}

void apply_recipe(TrainOptions& o, const FlagGiven& is_given) {
  set(o.model, "resnet50", "--model", is_given);
  set(o.epochs, 90, "--epochs", is_given);
  set(o.batch_size, 256, "--batch-size", is_given);
  if (o.optimizer.name == "sgd") {  // the numbers mean nothing to another optimizer
    set(o.optimizer.lr, 0.1 * static_cast<double>(o.batch_size) / 256, "--lr", is_given);
    set(o.optimizer.momentum, 0.9, "--momentum", is_given);
    set(o.optimizer.nesterov, false, "--nesterov", is_given);
    set(o.optimizer.weight_decay, 1e-4, "--weight-decay", is_given);
  }
  set(o.optimizer.norm_decay, false, "--norm-decay", is_given);
  set(o.schedule.name, "cosine", "--schedule", is_given);
  if (o.schedule.name != "one_cycle") set(o.schedule.warmup, 5, "--warmup", is_given);
  set(o.augmentation.label_smoothing, 0.1, "--label-smoothing", is_given);
  set(o.zero_init, true, "--zero-init", is_given);
}

}  // namespace tutti::examples
