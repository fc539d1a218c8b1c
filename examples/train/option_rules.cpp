// What no single flag of the trainer decides: the defaults that depend on other options, and which
// options go together. The table of the options and their ranges are in options.cpp.
#include "options.h"

#include "training_data.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace tutti::examples {
namespace {

// ---- Defaults that belong together. What a flag has set stays as it is.

// Sets an option that no flag has set.
template <class T, class Value>
void set(T& option, const Value& value, const char* flag, const FlagGiven& is_given) {
  if (!is_given(flag)) option = value;
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

// A dataset of segmentation is called as its folder, which may be "folder".
bool is_image_folder(const TrainOptions& o) {
  return o.task == Task::classification && o.dataset == "folder";
}

// ---- Which options go together. A flag that would do nothing, or that contradicts another one, is
// refused by name, so that nobody waits for a run that is not the one meant.

// A flag that may be given only where it works. `otherwise` follows the flag's name in the error.
struct Rule {
  std::string flag;
  bool works;
  std::string otherwise;
};

std::vector<Rule> data_rules(const TrainOptions& o) {
  const bool is_folder = is_image_folder(o), has_files = is_folder || o.task == Task::segmentation;
  return {
      {"--dataset", !is_folder || !o.data.empty(),
       "folder needs --data DIR, with pictures in DIR/train/CLASS and DIR/val/CLASS"},
      {"--image-size", is_folder,
       fmt::format("needs --dataset folder; {} has images of one size", o.dataset)},
      {"--check-files", o.dry_run, "needs --dry-run"},
      {"--check-files", has_files, "needs --dataset folder"},
      {"--accumulate", o.accumulate * o.ranks <= o.batch_size,
       fmt::format("{} needs an image of each rank in each part: --batch-size is {}", o.accumulate,
                   o.batch_size)},
  };
}

std::vector<Rule> optimizer_rules(const TrainOptions& o) {
  const std::string& name = o.optimizer.name;
  return {
      {"--momentum", name == "sgd" || name == "lars",
       fmt::format("needs --optimizer sgd or lars, not {}", name)},
      {"--nesterov", name == "sgd", fmt::format("needs --optimizer sgd, not {}", name)},
      {"--nesterov", o.optimizer.momentum > 0 || !o.optimizer.nesterov,
       "needs a --momentum above 0"},
      {"--norm-decay", o.optimizer.weight_decay > 0 || name == "lars",
       "(and --no-norm-decay) needs a --weight-decay above 0"},
  };
}

std::vector<Rule> schedule_rules(const TrainOptions& o) {
  const ScheduleOptions& s = o.schedule;
  const bool is_steps = s.name == "steps";
  return {
      {"--schedule", !is_steps || !s.milestones.empty(), "steps needs --milestones EPOCH,EPOCH"},
      {"--milestones", is_steps, fmt::format("needs --schedule steps, not {}", s.name)},
      {"--milestones",
       std::ranges::adjacent_find(s.milestones, std::greater_equal()) == s.milestones.end(),
       fmt::format("must rise, as in 30,60,80; got {}", fmt::join(s.milestones, ","))},
      {"--milestones", std::ranges::all_of(s.milestones, [&](auto m) { return m > s.warmup; }),
       fmt::format("must lie behind the {} epochs of --warmup", s.warmup)},
      {"--milestones", s.milestones.empty() || s.milestones.back() < o.epochs,
       fmt::format("lie behind the end of the run: --epochs is {}", o.epochs)},
      {"--gamma", is_steps || s.name == "plateau",
       fmt::format("needs --schedule steps or plateau, not {}", s.name)},
      {"--plateau-patience", s.name == "plateau",
       fmt::format("needs --schedule plateau, not {}", s.name)},
      {"--warmup", s.name != "one_cycle",
       "does not go with --schedule one_cycle, which has its own"},
      {"--warmup", s.warmup < o.epochs,
       fmt::format("{} must be less than --epochs {}", s.warmup, o.epochs)},
  };
}

std::vector<Rule> run_rules(const TrainOptions& o) {
  return {
      {"--out", !o.out.empty(), "needs the name of a folder"},
      {"--data", !o.data.empty(), "needs the name of a folder"},
      {"--weights", !o.weights.empty(), "needs the name of a file"},
      {"--trace", !o.trace.empty(), "needs the name of a file"},
      {"--out", !o.out.starts_with('~'), "got a ~ that the shell has not replaced; write $HOME"},
      {"--precision", o.precision != float16 || !o.device.is_cpu(),
       "fp16 needs --device cuda; on the cpu use bf16; --help explains the flags"},
      {"--zero-init", o.weights.empty(), "has no effect with --weights, which sets these values"},
      {"--cuda-graph", o.accumulate == 1,
       "records steps of one backward pass: leave out --accumulate"},
      {"--allow-tf32", !o.device.is_cpu(), "needs --device cuda"},
      {"--autotune", !o.device.is_cpu(), "needs --device cuda"},
      {"--sync-bn-scope", o.sync_bn, "has no effect with --no-sync-bn: leave out one of the two"},
      {"--resume", !o.overwrite,
       "goes on with the run that --overwrite removes: use one of the two"},
  };
}

std::vector<Rule> segmentation_rules(const TrainOptions& o) {
  const SegmentationOptions& s = o.segmentation;
  const bool is_unet = o.model == "unet";
  return {
      {"--width", is_unet, fmt::format("needs --model unet, not {}", o.model)},
      {"--auxiliary-loss", !is_unet, "needs a network with a backbone, not unet"},
      {"--backbone-lr", !is_unet, "needs a network with a backbone, not unet"},
      {"--min-scale", s.min_scale <= s.max_scale,
       fmt::format("{} must not be above --max-scale {}", s.min_scale, s.max_scale)},
      {"--max-scale", s.min_scale <= s.max_scale,
       fmt::format("{} must not be below --min-scale {}", s.max_scale, s.min_scale)},
  };
}

void check_rules(const TrainOptions& options, const FlagGiven& is_given) {
  for (const auto rules :
       {data_rules, optimizer_rules, schedule_rules, run_rules, segmentation_rules})
    for (const Rule& rule : rules(options))
      if (!rule.works && is_given(rule.flag)) fail<UsageError>("{} {}", rule.flag, rule.otherwise);
}

}  // namespace

void complete(TrainOptions& o, const FlagGiven& is_given) {
  set_optimizer_defaults(o, is_given);
  check_rules(o, is_given);
  if (!is_given("--cuda-graph")) o.cuda_graph = o.device.is_cuda() && o.accumulate == 1;
  if (o.task == Task::segmentation) {
    if (o.data.empty()) fail<UsageError>("--data DIR is missing; --help explains the flags");
    if (const std::string name = name_of_data(o); !name.empty()) o.dataset = name;
  }
  const bool is_folder = is_image_folder(o);
  if (is_folder && o.image_size == 0) o.image_size = 224;
  if (is_folder && !is_given("--model")) o.model = "resnet18";
  if (o.data.empty()) o.data = default_folder(o.dataset);
  if (o.out.empty()) o.out = "runs/" + o.dataset + "-" + o.model;
}

}  // namespace tutti::examples
