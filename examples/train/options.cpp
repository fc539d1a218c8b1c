#include "options.h"

#include "dataset.h"
#include "flags.h"
#include "option_rules.h"
#include "option_words.h"
#include "recipe.h"

#include <tutti/core/did_you_mean.h>
#include <tutti/core/version.h>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>

namespace tutti::examples {
namespace {

constexpr const char* exit_codes =
    "Exit codes: 0 success (also a run that --patience ended), --help, --version, --dry-run or\n"
    "--test-only; 1 a failure such as a full disk, a loss that is not finite or another rank that\n"
    "failed; 2 a wrong flag, or data, weights or a checkpoint that cannot be used; 3 stopped by\n"
    "SIGTERM, SIGINT, SIGUSR1 or SIGHUP, with a checkpoint: --resume goes on. A second signal ends "
    "the program at once.";

// Returns the names of all flags, for suggestions.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_fnames()) flags.push_back("--" + name);
  }
  return flags;
}

[[noreturn]] void refuse_unknown(const CLI::App& app) {
  const std::string unknown = app.remaining().front(), flag = unknown.substr(0, unknown.find('='));
  fail<UsageError>("unknown argument {}{}; --help explains the flags", unknown,
                   did_you_mean(flag, flags_of(app)));
}

// Checks what no single flag can check, and fills in the defaults that depend on other flags.
void complete(const CLI::App& app, TrainOptions& o) {
  const FlagGiven is_given = [&](const char* flag) { return app.count(flag) > 0; };
  set_optimizer_defaults(o, is_given);
  if (!o.recipe.empty()) apply_recipe(o, is_given);
  check_option_rules(o, is_given);
  const bool is_folder = o.dataset == "folder";
  if (is_folder && o.image_size == 0) o.image_size = 224;
  if (is_folder && !is_given("--model") && o.recipe.empty()) o.model = "resnet18";
  if (o.data.empty()) o.data = default_folder(o.dataset);
  if (o.out.empty()) o.out = "runs/" + o.dataset + "-" + o.model;
}

}  // namespace

bool parse(int argc, const char* const* argv, TrainOptions& o, bool print_help) {
  CLI::App app(
      "Trains a ResNet on images, on one rank or many, with synchronised batch normalisation.\n"
      "Ranks are threads of this process (--ranks N) or processes (mpirun -n N train_resnet ...); "
      "the same\nseed and global batch give the same loss curve in every arrangement, unless "
      "images "
      "are mixed.",
      "train_resnet");
  app.get_formatter()->column_width(34);
  app.footer(exit_codes);
  app.set_version_flag("--version", &describe_build,
                       "Print the version of tutti and what it was built with, and exit");
  // A flag that is given twice counts as given last: scripts such as quickstart.sh set some of
  // their own and pass on the user's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const auto add_flags : {add_data_flags, add_augmentation_flags, add_length_flags,
                               add_optimizer_flags, add_rank_flags, add_batch_norm_flags,
                               add_device_flags, add_weights_flags, add_output_flags})
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
  complete(app, o);
  return true;
}

std::string to_json(const TrainOptions& o) {
  const nlohmann::ordered_json json{{"dataset", o.dataset},
                                    {"data", o.data},
                                    {"image_size", o.image_size},
                                    {"broken_files", to_string(o.broken_files)},
                                    {"model", o.model},
                                    {"zero_init", o.zero_init},
                                    {"epochs", o.epochs},
                                    {"max_steps", o.max_steps},
                                    {"patience", o.patience},
                                    {"batch_size", o.batch_size},
                                    {"drop_last", o.drop_last},
                                    {"accumulate", o.accumulate},
                                    {"ranks", o.ranks},
                                    {"threads", o.threads},
                                    {"workers", o.workers},
                                    {"timeout", std::chrono::duration<double>(o.timeout).count()},
                                    {"optimizer", o.optimizer.name},
                                    {"lr", o.optimizer.lr},
                                    {"momentum", o.optimizer.momentum},
                                    {"nesterov", o.optimizer.nesterov},
                                    {"weight_decay", o.optimizer.weight_decay},
                                    {"norm_decay", o.optimizer.norm_decay},
                                    {"clip_norm", o.optimizer.clip_norm},
                                    {"ema", o.optimizer.ema},
                                    {"schedule", o.schedule.name},
                                    {"warmup", o.schedule.warmup},
                                    {"milestones", o.schedule.milestones},
                                    {"gamma", o.schedule.gamma},
                                    {"plateau_patience", o.schedule.plateau_patience},
                                    {"label_smoothing", o.augmentation.label_smoothing},
                                    {"mixup", o.augmentation.mixup},
                                    {"cutmix", o.augmentation.cutmix},
                                    {"seed", o.seed},
                                    {"weights", o.weights},
                                    {"freeze", fmt::format("{}", fmt::join(o.freeze, ","))},
                                    {"sync_bn", o.sync_bn},
                                    {"sync_bn_scope", o.sync_bn_scope},
                                    {"recompute_statistics", o.recompute_statistics},
                                    {"bn_report", o.bn_report},
                                    {"sharded", o.sharded},
                                    {"uneven", to_string(o.uneven)},
                                    {"precision", to_string(o.precision)},
                                    {"device", to_string(o.device)},
                                    {"cuda_graph", o.cuda_graph},
                                    {"allow_tf32", o.allow_tf32},
                                    {"autotune", o.autotune},
                                    {"memory_format", to_string(o.memory_format)},
                                    {"log_every", o.log_every},
                                    {"checkpoint_every", o.checkpoint_every},
                                    {"keep_best", o.keep_best},
                                    {"keep_last", o.keep_last},
                                    {"tensorboard", o.tensorboard},
                                    {"out", o.out}};
  return json.dump(2) + "\n";
}

}  // namespace tutti::examples
