// Reads the command line by the table of options, fills in the defaults that depend on other
// options, and refuses what does not go together.
#include "options.h"

#include "dataset.h"
#include "option_table.h"

#include <tutti/core/did_you_mean.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/version.h>

#include <algorithm>
#include <functional>
#include <iostream>

namespace tutti::examples {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* exit_codes =
    "Exit codes: 0 success (also a run that --patience ended), --help, --version, --dry-run or\n"
    "--test-only; 1 a failure such as a full disk, a loss that is not finite or another rank that\n"
    "failed; 2 a wrong flag, or data, weights or a checkpoint that cannot be used; 3 stopped by\n"
    "SIGTERM, SIGINT, SIGUSR1 or SIGHUP, with a checkpoint: --resume goes on. A second signal ends "
    "the program at once.";

// Returns whether the command line has a flag.
using FlagGiven = std::function<bool(const std::string& flag)>;

// Calls `use` with each option of the table.
template <class Use>
void for_each_option(TrainOptions& o, const Use& use) {
  for (const OptionSection& section : option_table(o))
    for (const Option& option : section.options) use(option);
}

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

// The usual recipe for ResNet-50 on ImageNet: the reference of PyTorch (references/classification:
// 90 epochs of SGD with a momentum of 0.9 and a weight decay of 1e-4, a learning rate of 0.1 for a
// batch of 256) with the warm-up of 5 epochs, the linear scaling of the rate with the batch and the
// last normalisation of each block starting at 0 of Goyal et al., "Accurate, large minibatch SGD"
// (2017), and with the cosine schedule, the label smoothing of 0.1 and no decay of normalisation
// and biases of PyTorch's later reference. It averages no weights: where the rate falls to 0 the
// last weights do as well.
void apply_imagenet_recipe(TrainOptions& o, const FlagGiven& is_given) {
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

// ---- Which options go together. A flag that would do nothing, or that contradicts another one, is
// refused by name, so that nobody waits for a run that is not the one meant.

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
std::vector<Rule> test_rules(const TrainOptions& options) {
  TrainOptions o = options;
  std::vector<Rule> rules;
  for_each_option(o, [&](const Option& option) {
    rules.push_back({option.flag(), !o.test_only || option.use == Use::always,
                     "has no effect with --test-only: leave out one of the two"});
  });
  return rules;
}

void check_rules(const TrainOptions& options, const FlagGiven& is_given) {
  for (const auto rules : {test_rules, data_rules, optimizer_rules, schedule_rules, run_rules})
    for (const Rule& rule : rules(options))
      if (!rule.works && is_given(rule.flag)) fail<UsageError>("{} {}", rule.flag, rule.otherwise);
}

// Checks what no single flag can check, and fills in the defaults that depend on other flags.
void complete(TrainOptions& o, const FlagGiven& is_given) {
  set_optimizer_defaults(o, is_given);
  if (!o.recipe.empty()) apply_imagenet_recipe(o, is_given);
  check_rules(o, is_given);
  const bool is_folder = o.dataset == "folder";
  if (is_folder && o.image_size == 0) o.image_size = 224;
  if (is_folder && !is_given("--model") && o.recipe.empty()) o.model = "resnet18";
  if (o.data.empty()) o.data = default_folder(o.dataset);
  if (o.out.empty()) o.out = "runs/" + o.dataset + "-" + o.model;
}

// ---- The command line

[[noreturn]] void refuse_unknown(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const auto& names : {option->get_lnames(), option->get_fnames()})
      for (const std::string& name : names) known.push_back("--" + name);
  const std::string unknown = app.remaining().front(), flag = unknown.substr(0, unknown.find('='));
  fail<UsageError>("unknown argument {}{}; --help explains the flags", unknown,
                   did_you_mean(flag, known));
}

void add_flags(CLI::App& app, TrainOptions& o) {
  app.get_formatter()->column_width(34);
  app.footer(exit_codes);
  app.set_version_flag("--version", &describe_build,
                       "Print the version of tutti and what it was built with, and exit");
  // A flag that is given twice counts as given last: scripts such as quickstart.sh set some of
  // their own and pass on the user's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const OptionSection& section : option_table(o))
    for (const Option& option : section.options)
      option.value.add(app, option.flags, option.help)->group(section.title);
}

// Returns the options that `is_in` chooses, by their names.
template <class IsIn>
Json chosen(TrainOptions o, const IsIn& is_in) {
  Json json = Json::object();
  for_each_option(o, [&](const Option& option) {
    if (is_in(option.resume)) json[option.name()] = option.value.to_json();
  });
  return json;
}

Json comparable(const TrainOptions& o) {
  return chosen(o, [](Resume r) { return r == Resume::must_equal || r == Resume::may_change; });
}

// Only simple values are shown, because a list may be nested too deep to be printed.
std::string shown(const Json& value) {
  if (value.is_string()) return fmt::format("'{}'", excerpt(value.get<std::string>()));
  return value.is_primitive() ? value.dump() : value.type_name();
}

}  // namespace

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> names{"imagenet"};
  return names;
}

bool parse(int argc, const char* const* argv, TrainOptions& o, bool print_help) {
  CLI::App app(
      "Trains a ResNet on images, on one rank or many, with synchronised batch normalisation.\n"
      "Ranks are threads of this process (--ranks N) or processes (mpirun -n N train_resnet ...); "
      "the same\nseed and global batch give the same loss curve in every arrangement, unless "
      "images are mixed.",
      "train_resnet");
  add_flags(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (print_help) std::cout << app.help();
    return false;
  } catch (const CLI::CallForVersion& version) {
    if (print_help) std::cout << version.what();
    return false;
  } catch (const CLI::ExtrasError&) {
    refuse_unknown(app);
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; --help explains the flags");
  }
  complete(o, [&](const std::string& flag) { return app.count(flag) > 0; });
  return true;
}

std::string to_json(const TrainOptions& o) {
  return chosen(o, [](Resume r) { return r != Resume::is_unsaved; }).dump(2) + "\n";
}

std::string options_of_checkpoint(const TrainOptions& o) { return comparable(o).dump(); }

void check_same_options(const TrainOptions& options, const std::string& of_checkpoint) {
  const Json before = Json::parse(of_checkpoint, nullptr, false), now = comparable(options);
  if (!before.is_object()) fail<CheckpointError>("its options cannot be read");
  TrainOptions o = options, defaults;
  const Json by_default = comparable(defaults);
  for_each_option(o, [&](const Option& option) {
    const std::string name = option.name();
    if (!now.contains(name)) return;
    // Checkpoints of earlier versions do not name this option, and their runs had its default.
    const Json& from = name == "drop_last" && !before.contains(name) ? by_default : before;
    const bool goes_on = from.contains(name) &&
                         (from[name] == now[name] ||
                          (option.resume == Resume::may_change && from[name].is_number()));
    if (!goes_on)
      fail<CheckpointError>("it is of a run with {} = {}, this one has {}", name,
                            from.contains(name) ? shown(from[name]) : "nothing", shown(now[name]));
  });
  for (const auto& [name, value] : before.items())
    if (!now.contains(name))
      fail<CheckpointError>("it is of a run with an option '{}', which is unknown", excerpt(name));
}

std::vector<ChangedOption> changed_options(const TrainOptions& options,
                                           const std::string& of_checkpoint) {
  const Json before = Json::parse(of_checkpoint),
             now = chosen(options, [](Resume r) { return r == Resume::may_change; });
  std::vector<ChangedOption> changed;
  for (const auto& [name, value] : now.items())
    if (before.at(name) != value)
      changed.push_back({name, before.at(name).get<double>(), value.get<double>()});
  return changed;
}

double option_before(const std::string& of_checkpoint, const std::string& name) {
  return Json::parse(of_checkpoint).at(name).get<double>();
}

}  // namespace tutti::examples
