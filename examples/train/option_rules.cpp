#include "option_rules.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace tutti::examples {
namespace {

// A flag that may be given only where it works. `otherwise` follows the flag's name in the error.
struct Rule {
  std::string flag;
  bool works;
  std::string otherwise;
};

std::vector<Rule> data_rules(const TrainOptions& o) {
  const bool is_folder = o.dataset == "folder";
  return {
      {"--dataset", !is_folder || !o.data.empty(),
       "folder needs --data DIR, with pictures in DIR/train/CLASS and DIR/val/CLASS"},
      {"--image-size", is_folder,
       fmt::format("needs --dataset folder; {} has images of one size", o.dataset)},
      {"--broken-files", is_folder, "needs --dataset folder"},
      {"--uneven", o.sharded, "needs --sharded: else every rank has its part of each batch"},
      {"--accumulate", o.accumulate * o.ranks <= o.batch_size,
       fmt::format("{} needs an image of each rank in each part: --batch-size is {}", o.accumulate,
                   o.batch_size)},
  };
}

std::vector<Rule> optimizer_rules(const TrainOptions& o) {
  const std::string& name = o.optimizer.name;
  const bool has_momentum = o.optimizer.momentum > 0 || o.schedule.name == "one_cycle";
  return {
      {"--momentum", name == "sgd" || name == "lars",
       fmt::format("needs --optimizer sgd or lars, not {}", name)},
      {"--nesterov", name == "sgd", fmt::format("needs --optimizer sgd, not {}", name)},
      {"--nesterov", has_momentum || !o.optimizer.nesterov, "needs a --momentum above 0"},
      {"--norm-decay", o.optimizer.weight_decay > 0 || name == "lars",
       "(and --no-norm-decay) needs a --weight-decay above 0"},
  };
}

std::vector<Rule> schedule_rules(const TrainOptions& o) {
  const ScheduleOptions& s = o.schedule;
  const bool is_short = s.warmup < o.epochs, is_steps = s.name == "steps";
  return {
      {"--schedule", !is_steps || !s.milestones.empty(), "steps needs --milestones EPOCH,EPOCH"},
      {"--milestones", is_steps, fmt::format("needs --schedule steps, not {}", s.name)},
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
      {"--warmup", is_short, fmt::format("{} must be less than --epochs {}", s.warmup, o.epochs)},
      {"--recipe", is_short,
       fmt::format("{} warms up for {} epochs, but --epochs is {}: give a shorter --warmup, too",
                   o.recipe, s.warmup, o.epochs)},
  };
}

std::vector<Rule> run_rules(const TrainOptions& o) {
  return {
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

// A test of weights makes no step and writes nothing.
constexpr const char* flags_of_training =
    "--dry-run --resume --overwrite --recipe --epochs --max-steps --patience --drop-last "
    "--accumulate --optimizer --lr --momentum --nesterov --weight-decay --norm-decay "
    "--clip-norm --ema --schedule --warmup --milestones --gamma --plateau-patience "
    "--label-smoothing --mixup --cutmix --zero-init --freeze --keep-best --keep-last "
    "--log-every --checkpoint-every --tensorboard --bn-report --recompute-statistics "
    "--cuda-graph --sharded --sync-bn-scope";

std::vector<Rule> test_rules(const TrainOptions& o) {
  std::vector<Rule> rules;
  std::istringstream flags(flags_of_training);
  for (std::string flag; flags >> flag;)
    rules.push_back(
        {flag, !o.test_only, "has no effect with --test-only: leave out one of the two"});
  return rules;
}

}  // namespace

void check_option_rules(const TrainOptions& options, const FlagGiven& is_given) {
  for (const auto rules : {test_rules, data_rules, optimizer_rules, schedule_rules, run_rules})
    for (const Rule& rule : rules(options))
      if (!rule.works && is_given(rule.flag.c_str()))
        fail<UsageError>("{} {}", rule.flag, rule.otherwise);
}

}  // namespace tutti::examples
