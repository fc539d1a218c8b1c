#include "options.h"

#include "dataset.h"
#include "flags.h"
#include "option_words.h"

#include <tutti/nn/resnet.h>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>

namespace tutti::examples {
namespace {

// Checks what no single flag can check, and fills in the defaults that depend on other flags.
void complete(TrainOptions& o) {
  if (const auto known = nn::resnet_names(); std::ranges::find(known, o.model) == known.end())
    fail<UsageError>("--model: expected one of {}, got {}; --help explains the flags",
                     fmt::join(known, ", "), o.model);
  if (o.precision == float16 && o.device.is_cpu())
    fail<UsageError>(
        "--precision fp16 needs --device cuda; on the cpu use bf16; --help explains the flags");
  if (o.data.empty()) o.data = default_folder(o.dataset);
  if (o.out.empty()) o.out = "runs/" + o.dataset + "-" + o.model;
}

}  // namespace

bool parse(int argc, const char* const* argv, TrainOptions& o, bool print_help) {
  CLI::App app(
      "Trains a ResNet on images, on one rank or many, with synchronised batch normalisation.\n"
      "Ranks are threads of this process (--ranks N) or processes (mpirun -n N train_resnet ...); "
      "the same\nseed and global batch give the same loss curve in every arrangement.",
      "train_resnet");
  app.get_formatter()->column_width(34);
  // A flag that is given twice counts as given last: scripts such as quickstart.sh set some of
  // their own and pass on the user's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const auto add_flags : {add_data_flags, add_length_flags, add_optimizer_flags,
                               add_rank_flags, add_device_flags, add_output_flags})
    add_flags(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (print_help) std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; --help explains the flags");
  }
  complete(o);
  return true;
}

std::string to_json(const TrainOptions& o) {
  const nlohmann::ordered_json json{{"dataset", o.dataset},
                                    {"data", o.data},
                                    {"model", o.model},
                                    {"epochs", o.epochs},
                                    {"max_steps", o.max_steps},
                                    {"batch_size", o.batch_size},
                                    {"ranks", o.ranks},
                                    {"threads", o.threads},
                                    {"workers", o.workers},
                                    {"lr", o.optimizer.lr},
                                    {"momentum", o.optimizer.momentum},
                                    {"nesterov", o.optimizer.nesterov},
                                    {"weight_decay", o.optimizer.weight_decay},
                                    {"seed", o.seed},
                                    {"sync_bn", o.sync_bn},
                                    {"sharded", o.sharded},
                                    {"uneven", to_string(o.uneven)},
                                    {"precision", to_string(o.precision)},
                                    {"device", to_string(o.device)},
                                    {"cuda_graph", o.cuda_graph},
                                    {"memory_format", to_string(o.memory_format)},
                                    {"log_every", o.log_every},
                                    {"checkpoint_every", o.checkpoint_every},
                                    {"bn_report", o.bn_report},
                                    {"tensorboard", o.tensorboard},
                                    {"out", o.out}};
  return json.dump(2) + "\n";
}

}  // namespace tutti::examples
