#include "options.h"

#include "../data/dataset.h"

#include <tutti/core/parallel.h>
#include <tutti/nn/resnet.h>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <limits>

namespace tutti::examples {
namespace {

using distributed::Uneven;

// Adds a flag whose text `parse` turns into a value; a ValueError becomes the flag's error.
template <class Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& flag, Parse parse,
                        const std::string& help) {
  return app.add_option_function<std::string>(
      flag,
      [flag, parse](const std::string& text) {
        try {
          parse(text);
        } catch (const ValueError& error) {
          throw CLI::ValidationError(flag, error.what());
        }
      },
      help);
}

// Accepts numbers from `low` to `high`. CLI11's own validators print the limits of a double with
// 309 digits; this one prints `expected`.
template <class Number>
CLI::Validator in_range(Number low, Number high, const std::string& expected,
                        const std::string& in_help) {
  return CLI::Validator(
      [=](const std::string& text) {
        Number value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc{} && end == text.data() + text.size();
        return whole && value >= low && value <= high
                   ? ""
                   : fmt::format("expected {}, got {}", expected, text);
      },
      in_help);
}

// The limits `most` are far above any use, and so low that a product of two does not overflow.
CLI::Validator positive(std::int64_t most) {
  return in_range<std::int64_t>(1, most, fmt::format("a positive whole number of at most {}", most),
                                "POSITIVE");
}
CLI::Validator positive() {
  return in_range(std::numeric_limits<double>::min(), std::numeric_limits<double>::max(),
                  "a positive number", "POSITIVE");
}
CLI::Validator not_negative() {
  return in_range(0.0, std::numeric_limits<double>::max(), "a number of at least 0", "NONNEGATIVE");
}
template <class Number>
CLI::Validator not_negative_whole() {
  return in_range(Number{0}, std::numeric_limits<Number>::max(), "a whole number of at least 0",
                  "NONNEGATIVE");
}
template <class Number>
CLI::Validator between(Number low, Number high) {
  const std::string range = fmt::format("[{} - {}]", low, high);
  return in_range(low, high, fmt::format("a number from {} to {}", low, high), "in " + range);
}

// ---- values that are words

Uneven uneven_from_string(const std::string& text) {
  if (text == "shadow") return Uneven::shadow;
  if (text == "stop") return Uneven::stop;
  if (text == "error") return Uneven::error;
  fail<ValueError>("unknown way '{}': expected shadow, stop or error", text);
}

const char* to_string(Uneven uneven) {
  return uneven == Uneven::shadow ? "shadow" : uneven == Uneven::stop ? "stop" : "error";
}

DType precision_from_string(const std::string& text) {
  if (text == "bf16") return bfloat16;
  if (text == "fp16") return float16;
  if (text == "float32" || text == "float64") return dtype_from_string(text);
  fail<ValueError>("unknown precision '{}': expected float32, bf16, fp16 or float64", text);
}

MemoryFormat memory_format_from_string(const std::string& text) {
  if (text == "channels_last") return MemoryFormat::channels_last;
  if (text == "contiguous") return MemoryFormat::contiguous;
  fail<ValueError>("unknown memory format '{}': expected channels_last or contiguous", text);
}

// ---- the flags, in the order of the help text

void add_data_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--dataset", o.dataset, "What to train on")
      ->check(CLI::IsMember(dataset_names()))
      ->capture_default_str();
  app.add_option(
      "--data", o.data,
      "Folder of the data files (default: where Debian or the dataset's archive puts them)");
  app.add_option("--model", o.model,
                 "resnet20, 32, 44, 56 (for small images), resnet18, 34, 50, 101 or 152")
      ->capture_default_str();
}

void add_length_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--epochs", o.epochs, "Passes over the training images")
      ->check(positive(1'000'000))
      ->capture_default_str();
  app.add_option("--max-steps", o.max_steps,
                 "Stop after this many steps, 0 for no limit; the schedule fits itself in")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
  app.add_option("--batch-size", o.batch_size,
                 "Global batch: images per step over all ranks together")
      ->check(positive(1 << 20))
      ->capture_default_str();
  app.add_option("--ranks", o.ranks,
                 "Ranks that are threads of this process; leave at 1 under mpirun")
      ->check(between(1, 1024))
      ->capture_default_str();
  app.add_option("--threads", o.threads,
                 "Threads each rank computes with, 0 for its share of the cores")
      ->check(between(0, std::max(256, available_cores())))
      ->capture_default_str();
}

void add_optimizer_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--lr", o.lr, "Learning rate at the peak of the one-cycle schedule")
      ->check(positive())
      ->capture_default_str();
  app.add_option("--momentum", o.momentum,
                 "Momentum of SGD; 0 to cycle it against the rate, 0.95 to 0.85 and back")
      ->check(between(0.0, 0.9999))
      ->capture_default_str();
  app.add_flag("--nesterov,!--no-nesterov", o.nesterov,
               "Nesterov's momentum (the default), or the plain one");
  app.add_option("--weight-decay", o.weight_decay, "Weight decay of SGD")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Seed of the weights, the shuffling and the augmentation")
      ->check(not_negative_whole<std::uint64_t>())
      ->capture_default_str();
}

void add_rank_flags(CLI::App& app, TrainOptions& o) {
  app.add_flag("--sync-bn,!--no-sync-bn", o.sync_bn,
               "Batch normalisation over the global batch (the default), or over each rank's own "
               "part of it");
  app.add_flag("--sharded", o.sharded,
               "Each rank trains on its own part of the images, in batches of its own, instead of "
               "on its part of every global batch");
  add_parsed(
      app, "--uneven", [&](const std::string& text) { o.uneven = uneven_from_string(text); },
      "With --sharded, ranks whose images are used up before those of the others in an epoch: "
      "shadow (go on with empty batches), stop (the epoch ends for all) or error [shadow]");
}

void add_device_flags(CLI::App& app, TrainOptions& o) {
  add_parsed(
      app, "--precision",
      [&](const std::string& text) { o.precision = precision_from_string(text); },
      "float32; bf16: convolutions and matrix products in bfloat16, all else in float32; fp16: the "
      "same in float16, with loss scaling, on cuda only; or float64: plain reference code, slow "
      "[float32]");
  add_parsed(
      app, "--device", [&](const std::string& text) { o.device = Device::from_string(text); },
      "cpu, cuda or cuda:INDEX; with cuda, rank r takes device r of its host, and ranks share "
      "devices where there are fewer of them [cpu]");
  app.add_flag("--cuda-graph", o.cuda_graph,
               "With --device cuda, record a step, the optimizer included, once and replay it, "
               "which costs the host one launch for each step; where that cannot be done it says "
               "why and goes on without");
  add_parsed(
      app, "--memory-format",
      [&](const std::string& text) { o.memory_format = memory_format_from_string(text); },
      "channels_last (fast) or contiguous [channels_last]");
}

void add_output_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--log-every", o.log_every, "Steps between two lines of metrics.jsonl")
      ->check(positive(1'000'000'000))
      ->capture_default_str();
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "Steps between two checkpoints in the run folder, beside those at the end of each "
                 "epoch; 0 for none")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
  app.add_flag("--resume", o.resume,
               "Go on from the run folder's last checkpoint, to the same bits as without the stop; "
               "from the beginning where there is none");
  app.add_flag("--overwrite", o.overwrite,
               "Remove the files of an older run from the run folder, and begin anew; without this "
               "flag and --resume such a folder is refused");
  app.add_option("--trace", o.trace,
                 "Write a timeline of the run to this file, to be opened at ui.perfetto.dev; keep "
                 "the run short: a step has hundreds of events");
  app.add_option("--out", o.out,
                 "Run folder for metrics, weights and curves (default: runs/DATASET-MODEL)");
}

// Checks what no single flag can check, and fills in the defaults that depend on other flags.
void complete(TrainOptions& o) {
  if (const auto known = nn::resnet_names(); std::ranges::find(known, o.model) == known.end())
    fail<UsageError>("--model: expected one of {}, got {}; --help explains the flags",
                     fmt::join(known, ", "), o.model);
  if (o.precision == float16 && o.device.is_cpu())
    fail<UsageError>(
        "--precision fp16 needs --device cuda; on the cpu use bf16; --help explains the flags");
  if (o.resume && o.overwrite)
    fail<UsageError>("--resume goes on with the run that --overwrite removes: use one of the two");
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
                                    {"lr", o.lr},
                                    {"momentum", o.momentum},
                                    {"nesterov", o.nesterov},
                                    {"weight_decay", o.weight_decay},
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
                                    {"out", o.out}};
  return json.dump(2) + "\n";
}

}  // namespace tutti::examples
