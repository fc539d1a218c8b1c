// The table of the trainer's options: the flag, the member of TrainOptions, its range, the help,
// and whether a resumed run may have another value. The command line, the help text, config.json
// and what a checkpoint stores and --resume compares all follow from it. option_values.h has the
// kinds of values, and option_rules.cpp says which options go together.
#include "options.h"

#include "network.h"
#include "option_values.h"
#include "training_data.h"
#include "training_step.h"

#include <tutti/core/did_you_mean.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/parallel.h>
#include <tutti/core/version.h>
#include <tutti/distributed/flight_recorder_file.h>
#include <tutti/nn/models/resnet.h>

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace tutti::examples {
namespace {

using namespace option_values;

// Whether a resumed run may have another value than the run before.
enum class Resume {
  must_equal,    // The numbers of the run depend on it.
  may_change,    // They do, too, but the user may want the run to go on in another way.
  is_unchecked,  // No number depends on it. Checkpoints do not hold it.
  is_unsaved,    // It is about this call of the program. config.json does not hold it, either.
};

// Whether an option has an effect on a program that only tests weights (--test-only).
enum class Use { always, training };

struct Option {
  std::string flags;  // "--lr", or "--nesterov,!--no-nesterov" with a flag for the opposite
  Value value;
  Resume resume;
  Use use;
  std::string help;

  // Returns the flag without the one for the opposite.
  std::string flag() const { return flags.substr(0, flags.find(',')); }
  // Returns the name in JSON: "sync_bn" for --sync-bn.
  std::string name() const {
    std::string name = flag().substr(2);
    std::ranges::replace(name, '-', '_');
    return name;
  }
};

// Options that --help shows together.
struct OptionSection {
  std::string title;
  std::vector<Option> options;
};

using enum Resume;
using enum Use;

// ---- The table

std::vector<Option> data_options(TrainOptions& o) {
  return {
      {"--dataset", name_of(o.dataset, dataset_names()), must_equal, always,
       fmt::format("What to train on: {}; folder: your own pictures, a class in each folder of "
                   "DIR/train and DIR/val, with --data DIR",
                   fmt::join(dataset_names(), ", "))},
      {"--data", path(o.data), is_unchecked, always,
       "Folder of the data files (default: where Debian or the dataset's archive puts them)"},
      {"--image-size", plain(o.image_size, positive(4096), false), must_equal, always,
       "With --dataset folder, the pixels of a side that the network sees: of a random part of a "
       "picture in training, of the centre in tests (default: 224)"},
      {"--check-files", flag(o.check_files), is_unsaved, always,
       "With --dry-run and --dataset folder, decode every picture and list those that are broken"},
      {"--model", name_of(o.model, nn::resnet_names()), must_equal, always,
       fmt::format("{}; resnet20 to resnet56 are for small images; with --dataset folder the "
                   "default is resnet18",
                   fmt::join(nn::resnet_names(), ", "))},
      {"--zero-init,!--no-zero-init", flag(o.zero_init), must_equal, training,
       "Begin with a weight of 0 in the last normalisation of each residual block, so that the "
       "block passes on its input, or with 1 (the default)"},
      {"--label-smoothing", plain(o.augmentation.label_smoothing, between(0.0, 1.0)), must_equal,
       training, "Share of the labels that all classes get alike, in training; 0 for none"},
      {"--mixup", plain(o.augmentation.mixup, not_negative()), must_equal, training,
       "Blend training images and their labels in pairs, with weights of the distribution "
       "Beta(ALPHA, ALPHA); 0 for not; with --cutmix each of the two does half of the batches"},
      {"--cutmix", plain(o.augmentation.cutmix, not_negative()), must_equal, training,
       "Paste rectangles between training images, of areas of the distribution Beta(ALPHA, "
       "ALPHA); 0 for not"},
  };
}

// Returns what segmentation has in place of data_options().
std::vector<Option> segmentation_options(TrainOptions& o) {
  SegmentationOptions& s = o.segmentation;
  return {
      {"--data", path(o.data), is_unchecked, always,
       "Folder whose train/ and val/ have images/, masks/ (PNG files of equal names) and "
       "classes.txt"},
      {"--mask-orientation",
       one_of(s.mask_orientation, {{"by-size", data::MaskOrientation::by_size},
                                   {"as-stored", data::MaskOrientation::as_stored},
                                   {"as-shown", data::MaskOrientation::as_shown}}),
       must_equal, always,
       "How masks lie to pictures that EXIF data turn or mirror, where the sizes do not tell: "
       "as-stored (drawn on the picture as its file stores it), as-shown (as programs show it), or "
       "by-size (an error that names the picture)"},
      {"--check-files", flag(o.check_files), is_unsaved, always,
       "With --dry-run, read every picture and mask, and list those that cannot be used"},
      {"--model", name_of(o.model, segmentation_names()), must_equal, always,
       fmt::format("{}", fmt::join(segmentation_names(), ", "))},
      {"--width", plain(s.width, between<std::int64_t>(1, 1024)), must_equal, always,
       "Channels of a unet at full resolution; each of its four levels doubles them"},
      {"--auxiliary-loss", plain(s.auxiliary, not_negative()), must_equal, always,
       "Weight of the loss of an auxiliary head on the third stage, such as 0.5; 0 for no such "
       "head"},
      {"--crop", plain(s.crop, between<std::int64_t>(1, 16384)), must_equal, always,
       "Side of the squares that training sees; tests see whole pictures"},
      {"--min-scale", plain(s.min_scale, between(0.01, 100.0)), must_equal, training,
       "Smallest factor by which training pictures are scaled before they are cropped"},
      {"--max-scale", plain(s.max_scale, between(0.01, 100.0)), must_equal, training,
       "Largest such factor"},
      {"--backbone-lr", plain(o.optimizer.backbone_lr, between(0.0, 1.0)), must_equal, training,
       "Learning rate of the backbone as a part of that of the heads, such as 0.1"},
  };
}

std::vector<Option> length_options(TrainOptions& o) {
  return {
      {"--epochs", plain(o.epochs, positive(1'000'000)), may_change, training,
       "Passes over the training images"},
      {"--max-steps", plain(o.max_steps, not_negative<std::int64_t>()), may_change, training,
       "Stop after this many steps, 0 for no limit; the schedule fits itself in"},
      {"--batch-size", plain(o.batch_size, positive(1 << 20)), must_equal, always,
       "Global batch: images per step over all ranks together"},
      {"--drop-last", flag(o.drop_last), must_equal, training,
       "Leave out the last batch of an epoch if it is not full; every epoch leaves out other "
       "images"},
      {"--accumulate", plain(o.accumulate, positive(1 << 20)), must_equal, training,
       "Compute each step in this many micro batches, one after the other, to need less memory; "
       "batch normalisation then sees one of them at a time"},
  };
}

std::vector<Option> optimizer_options(TrainOptions& all) {
  OptimizerOptions& o = all.optimizer;
  return {
      {"--optimizer", name_of(o.name, optimizer_names()), must_equal, training,
       "sgd, adam, adamw or lars"},
      {"--lr", plain(o.lr, positive(), false), may_change, training,
       fmt::format("Highest learning rate of the schedule (default: {}; 0.001 for adam and adamw)",
                   default_options(all.task).optimizer.lr)},
      {"--momentum", plain(o.momentum, between(0.0, 0.9999)), must_equal, training,
       "Momentum of sgd and lars"},
      {"--nesterov,!--no-nesterov", flag(o.nesterov), must_equal, training,
       "Nesterov's momentum in sgd (the default), or the plain one"},
      {"--weight-decay", plain(o.weight_decay, not_negative(), false), must_equal, training,
       fmt::format("Weight decay (default: {}; 0 for adam, 0.01 for adamw)",
                   default_options(all.task).optimizer.weight_decay)},
      {"--norm-decay,!--no-norm-decay", flag(o.norm_decay), must_equal, training,
       "Weight decay of the weights of normalisation and of all biases, too (the default), or of "
       "the other weights only"},
      {"--clip-norm", plain(o.clip_norm, not_negative()), must_equal, training,
       "Largest norm of all gradients together, to which larger ones are scaled; 0 for any"},
      {"--ema",
       plain(o.ema, in_range(0.0, std::nextafter(1.0, 0.0), "a number from 0 up to, but not, 1",
                             "in [0 - 1)")),
       must_equal, training,
       "Average the weights over the steps with this decay, such as 0.999; the averages are "
       "tested and saved; 0 for none"},
      {"--seed", plain(all.seed, not_negative<std::uint64_t>()), must_equal, always,
       "Seed of the weights, the shuffling and the augmentation"},
  };
}

std::vector<Option> schedule_options(ScheduleOptions& s) {
  return {
      {"--schedule", name_of(s.name, schedule_names()), must_equal, training,
       "Learning rate over the run: one_cycle (up and down), cosine (down to 0), poly (down to 0, "
       "nearly in a line), steps (down by --gamma after each of --milestones), constant, or "
       "plateau (down by --gamma where the test loss stays)"},
      {"--warmup", plain(s.warmup, between<std::int64_t>(0, 1'000'000)), must_equal, training,
       "Epochs in which the rate rises from a hundredth to --lr, with every schedule but "
       "one_cycle"},
      {"--milestones", list(s.milestones, positive(1'000'000)), must_equal, training,
       "With --schedule steps, the epochs after which the rate falls, as in 30,60,80"},
      {"--gamma", plain(s.gamma, between(0.0, 0.9999)), must_equal, training,
       "With --schedule steps or plateau, the factor by which the rate falls"},
      {"--plateau-patience", plain(s.plateau_patience, not_negative<std::int64_t>()), must_equal,
       training,
       "With --schedule plateau, the epochs without a better test loss that are accepted before "
       "the rate falls"},
  };
}

std::vector<Option> rank_options(TrainOptions& o) {
  return {
      {"--ranks", plain(o.ranks, between(1, 1024)), is_unchecked, always,
       "Ranks that are threads of this process; leave at 1 under mpirun"},
      {"--threads", plain(o.threads, between(0, std::max(256, available_cores()))), is_unchecked,
       always, "Threads each rank computes with, 0 for its share of the cores"},
      {"--workers", plain(o.workers, between(0, 256)), is_unchecked, always,
       "Threads that load images for each rank; 0 loads between the steps"},
      {"--timeout", seconds(o.timeout), is_unchecked, always,
       "Seconds that a rank waits for the others, at the start and in every step, before all end "
       "with an error that names the absent ranks"},
  };
}

std::vector<Option> batch_norm_options(TrainOptions& o) {
  return {
      {"--sync-bn,!--no-sync-bn", flag(o.sync_bn), must_equal, always,
       "Batch normalisation over the global batch (the default), or over each rank's own part of "
       "it"},
      {"--sync-bn-scope", scope(o.sync_bn_scope), must_equal, training,
       "The ranks that share the statistics of a batch: world (all), host (those of one host) or "
       "a number of ranks that follow each other; tests and files get the average of all"},
      {"--recompute-statistics", plain(o.recompute_statistics, not_negative<std::int64_t>()),
       must_equal, training,
       "Before each evaluation, replace the running averages of batch normalisation by the "
       "statistics of this many training batches; 0 for not"},
      {"--recompute-output", flag(o.recompute_output), is_unchecked, training,
       "Compute the outputs of batch normalisation again in backward instead of keeping them, "
       "which takes less memory and more time, and changes no number"},
      {"--bn-report", flag(o.bn_report), is_unchecked, training,
       "At the end of each epoch, examine every batch normalisation on training batches: running "
       "against batch statistics, dead channels, ranks that stray; with advice"},
  };
}

std::vector<Option> device_options(TrainOptions& o) {
  return {
      {"--precision",
       one_of(o.precision,
              {{"float32", float32}, {"bf16", bfloat16}, {"fp16", float16}, {"float64", float64}}),
       must_equal, always,
       "float32; bf16: convolutions and matrix products in bfloat16, all else in float32; fp16: "
       "the same in float16, with loss scaling, on cuda only; or float64: plain reference code, "
       "slow"},
      {"--device", device(o.device), is_unchecked, always,
       "cpu, cuda or cuda:INDEX; with cuda, rank r takes device r of its host, and ranks share "
       "devices where there are fewer of them"},
      {"--cuda-graph,!--no-cuda-graph", flag(o.cuda_graph), must_equal, training,
       "With --device cuda, record a step, the optimizer included, once and replay it, which "
       "costs the host one launch for each step (the default but for --accumulate); "
       "where that cannot be done it says why and goes on without"},
      {"--allow-tf32", flag(o.allow_tf32), must_equal, always,
       "With --device cuda, let convolutions and matrix products in float32 round their inputs to "
       "TF32 (10 bits of mantissa), as PyTorch's convolutions do"},
      {"--autotune", flag(o.autotune), must_equal, always,
       "With --device cuda, time several of cuDNN's algorithms at the first convolution of each "
       "shape and keep the fastest; two runs may then differ in their last bits"},
  };
}

std::vector<Option> weights_options(TrainOptions& o) {
  return {
      {"--weights", path(o.weights), is_unchecked, always,
       "Begin with the weights of this safetensors file: of a run, of a checkpoint, or of "
       "import_torchvision.py; a head for another number of classes is replaced by a fresh one, "
       "and train_segmentation takes those of a ResNet for the backbone"},
      {"--freeze", list(o.freeze), must_equal, training,
       "Do not train what matches these patterns, as in 'conv1.*,bn1.*,layer1.*'; batch "
       "normalisation among it uses its running statistics; may be given several times"},
      {"--test-only", flag(o.test_only), is_unsaved, always,
       "Print the loss and the accuracy of --weights, or else of the run folder's weights, on the "
       "test images, and exit without writing anything"},
      {"--keep-best", flag(o.keep_best), is_unchecked, training,
       "Keep the weights with the best test accuracy so far as best.safetensors"},
      {"--keep-last", plain(o.keep_last, not_negative<std::int64_t>()), is_unchecked, training,
       "Keep the checkpoints of this many last epochs, too, as checkpoint-epoch-NNNN.safetensors; "
       "0 for none"},
  };
}

std::vector<Option> output_options(TrainOptions& o) {
  return {
      {"--log-every", plain(o.log_every, positive(1'000'000'000)), is_unchecked, training,
       "Steps between two lines of metrics.jsonl"},
      {"--checkpoint-every", plain(o.checkpoint_every, not_negative<std::int64_t>()), is_unchecked,
       training,
       "Steps between two checkpoints in the run folder, beside those at the end of each epoch; 0 "
       "for none"},
      {"--resume", flag(o.resume), is_unsaved, training,
       "Go on from the run folder's last checkpoint, to the same bits as without the stop, or to "
       "rounding on another number of ranks; from the beginning where there is none"},
      {"--overwrite", flag(o.overwrite), is_unsaved, training,
       "Remove the files of an older run from the run folder, and begin anew; without this flag "
       "and --resume such a folder is refused"},
      {"--dry-run", flag(o.dry_run), is_unsaved, training,
       "Print the model, the length of the run, the memory of a rank and what it sends in a step, "
       "and exit without writing anything"},
      {"--trace", path(o.trace), is_unsaved, always,
       "Write a timeline of the run to this file, to be opened at ui.perfetto.dev; keep the run "
       "short: a step has hundreds of events"},
      {"--out", path(o.out), is_unchecked, always,
       "Run folder for metrics, weights and report (default: runs/DATASET-MODEL)"},
  };
}

// Returns the table of the options' task, whose values refer to `o`.
std::vector<OptionSection> option_table(TrainOptions& o) {
  const bool segments = o.task == Task::segmentation;
  return {{"Data and model", segments ? segmentation_options(o) : data_options(o)},
          {"Length of the run", length_options(o)},
          {"Optimizer", optimizer_options(o)},
          {"Learning rate", schedule_options(o.schedule)},
          {"Ranks", rank_options(o)},
          {"Batch normalisation", batch_norm_options(o)},
          {"Device and precision", device_options(o)},
          {"Weights", weights_options(o)},
          {"Run and output", output_options(o)}};
}

constexpr const char* exit_codes =
    "Exit codes: 0 success, --help, --version, --dry-run or --test-only; 1 a failure such as a "
    "full\n"
    "disk, a loss that is not finite or another rank that failed; 2 a wrong flag, or data, "
    "weights\n"
    "or a checkpoint that cannot be used; 3 stopped by SIGTERM, SIGINT, SIGUSR1 or SIGHUP, with a\n"
    "checkpoint: --resume goes on. A second signal ends the program at once.";

// Calls `use` with each option of the table.
template <class Use>
void for_each_option(TrainOptions& o, const Use& use) {
  for (const OptionSection& section : option_table(o))
    for (const Option& option : section.options) use(option);
}

// Throws for a flag that has no effect on a test of weights, which makes no step and writes
// nothing.
void check_test_only(TrainOptions& o, const FlagGiven& is_given) {
  for_each_option(o, [&](const Option& option) {
    if (o.test_only && option.use != Use::always && is_given(option.flag()))
      fail<UsageError>("{} has no effect with --test-only: leave out one of the two",
                       option.flag());
  });
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
  const auto describe = [] {
    const std::string& library = distributed::flight_recorder_library();
    return describe_build() +
           (library.empty() ? "" : fmt::format("{:<20} {}\n", "MPI in use", library));
  };
  app.set_version_flag("--version", describe,
                       "Print the version of tutti and what it was built with, and exit");
  // A flag that is given twice counts as given last: scripts such as quickstart.sh set some of
  // their own and pass on the user's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const OptionSection& section : option_table(o))
    for (const Option& option : section.options)
      option.value.add(app, option.flags, option.help)->group(section.title);
}

// Bytes that are not UTF-8, as the name of a file may have, become U+FFFD.
std::string to_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Returns the options that `is_in` chooses, by their names.
template <class IsIn>
Json chosen(TrainOptions o, const IsIn& is_in) {
  Json json = Json::object();
  for_each_option(o, [&](const Option& option) {
    if (is_in(option.resume)) json[option.name()] = option.value.to_json();
  });
  return Json::parse(to_text(json));
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

const char* program_name(Task task) {
  return task == Task::segmentation ? "train_segmentation" : "train_resnet";
}

const char* score_name(const TrainOptions& options) {
  return options.task == Task::segmentation ? "mIoU" : "test accuracy";
}

const char* score_key(const TrainOptions& options) {
  return options.task == Task::segmentation ? "test_miou" : "test_accuracy";
}

std::string name_of_data(const TrainOptions& o) {
  if (o.data.empty() || (o.dataset != "folder" && o.task == Task::classification)) return o.dataset;
  const auto folder = std::filesystem::absolute(o.data + "/.").lexically_normal();
  return to_utf8(folder.parent_path().filename());
}

// Those of segmentation follow torchvision's references/segmentation.
TrainOptions default_options(Task task) {
  TrainOptions o;
  if (task == Task::classification) return o;
  o.task = task;
  o.dataset = "segmentation";
  o.model = "fcn_resnet50";
  o.epochs = 30;
  o.batch_size = 16;
  o.optimizer.lr = 0.01;
  o.optimizer.nesterov = false;
  o.optimizer.weight_decay = 1e-4;
  o.schedule.name = "poly";
  return o;
}

namespace {

// Parses the words of a command line, of which the first is the program's name.
void parse_words(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ExtrasError&) {
    refuse_unknown(app);
  } catch (const CLI::Success&) {  // a call for help or for the version
    throw;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; --help explains the flags");
  }
}

// Adds the flags of an old run that the command line does not give. A test of weights takes none of
// training, and not the weights that the run began with.
std::vector<std::string> with_saved_flags(std::vector<std::string> words, TrainOptions o,
                                          const Json& saved) {
  CLI::App app;
  add_flags(app, o);
  parse_words(app, words);
  for (const auto& [flag, value] : saved.items())
    if (o.resume && !app.get_option_no_throw(flag))
      fail<UsageError>(
          "config.json of the run has {} {}, which this {} does not know: it is of another program "
          "or version; remove it there to go on without it",
          excerpt(flag), excerpt(value.get<std::string>()), program_name(o.task));
  for_each_option(o, [&](const Option& option) {
    const std::string flag = option.flag();
    const bool has_no_effect = o.test_only && (option.use == Use::training || flag == "--weights");
    if (saved.contains(flag) && app[flag]->empty() && !has_no_effect)
      words.push_back(flag + "=" + saved[flag].get<std::string>());
  });
  return words;
}

}  // namespace

bool parse(int argc, const char* const* argv, TrainOptions& o, bool prints,
           const std::string& saved_flags) {
  const std::string name = program_name(o.task);
  CLI::App app(
      fmt::format(
          "Trains a {} on images, on one rank or many, with synchronised batch normalisation.\n"
          "Ranks are threads of this process (--ranks N) or processes (mpirun -n N {} ...); "
          "the same\nseed and global batch give the same loss curve in every arrangement, unless "
          "images are mixed.",
          o.task == Task::segmentation ? "network that classifies each pixel" : "ResNet", name),
      name);
  add_flags(app, o);
  std::vector<std::string> words(argv, argv + argc);
  const auto given = static_cast<std::ptrdiff_t>(words.size());
  try {
    if (!saved_flags.empty()) words = with_saved_flags(words, o, Json::parse(saved_flags));
    parse_words(app, words);
  } catch (const CLI::CallForHelp&) {
    if (prints) std::cout << app.help();
    return false;
  } catch (const CLI::CallForVersion& version) {
    if (prints) std::cout << version.what();
    return false;
  }
  const auto is_given = [&](const std::string& flag) {
    const CLI::Option* const option = app.get_option_no_throw(flag);  // null in the other program
    return option && option->count() > 0;
  };
  for_each_option(o, [&](const Option& option) {
    const std::string flag = option.flag();
    if (option.resume == Resume::is_unsaved || flag == "--out" || !is_given(flag)) return;
    const std::string value = fmt::format("{}", fmt::join(app[flag]->reduced_results(), ","));
    if (value == to_utf8(value)) o.flags[flag] = value;  // JSON cannot hold other names of files
  });
  if (const std::vector<std::string> saved(words.begin() + given, words.end());
      prints && !saved.empty())
    std::cout << fmt::format("flags of {}/config.json: {}\n", o.out, fmt::join(saved, " "));
  check_test_only(o, is_given);
  complete(o, is_given);
  return true;
}

std::string flags_of_old_run(int argc, const char* const* argv, Task task, int processes) {
  TrainOptions o = default_options(task);
  try {
    parse(argc, argv, o, false);
  } catch (const Error&) {  // a flag that is missing may be one of the old run
  }
  const bool tests_other_weights = o.test_only && !o.weights.empty();
  std::ifstream file(o.out + "/config.json");
  if ((!o.resume && !o.test_only) || tests_other_weights || o.out.empty() || !file) return {};
  const Json config = Json::parse(file, nullptr, false);
  Json flags = config.is_object() ? config.value("flags", Json::object()) : Json();
  if (!flags.is_object() ||
      !std::ranges::all_of(flags, [](const Json& value) { return value.is_string(); }))
    fail<UsageError>(
        "cannot read the flags of the run from {}/config.json; remove that file and give them all "
        "again",
        o.out);
  if (flags.empty()) return {};
  if (processes > 1) flags.erase("--ranks");
  flags["--out"] = o.out;  // which the flags of dataset and model would change
  return to_text(flags);
}

std::string settings_of_ranks(TrainOptions o) {
  o.data = o.out = "a folder";
  for (std::string* file : {&o.weights, &o.trace})
    if (!file->empty()) *file = "a file";
  o.threads = o.workers = 0;
  o.timeout = {};
  if (o.device.is_cuda()) o.device = Device::cuda(0);
  std::string lines = fmt::format("program = {}\n", program_name(o.task));
  const Json options = chosen(o, [](Resume) { return true; });
  for (const auto& [name, value] : options.items())
    lines += fmt::format("{} = {}\n", name, value.is_string() ? shown(value) : to_text(value));
  return lines;
}

std::string to_json(const TrainOptions& o) {
  Json json = chosen(o, [](Resume r) { return r != Resume::is_unsaved; });
  json["flags"] = o.flags;
  return to_text(json, 2) + "\n";
}

std::string options_of_checkpoint(const TrainOptions& o) { return to_text(comparable(o)); }

void check_same_options(const TrainOptions& options, const std::string& of_checkpoint) {
  const Json before = Json::parse(of_checkpoint, nullptr, false), now = comparable(options);
  if (!before.is_object()) fail<CheckpointError>("its options cannot be read");
  TrainOptions o = options;
  for_each_option(o, [&](const Option& option) {
    const std::string name = option.name();
    if (!now.contains(name)) return;
    const bool goes_on = before.contains(name) &&
                         (before[name] == now[name] ||
                          (option.resume == Resume::may_change && before[name].is_number()));
    if (!goes_on)
      fail<CheckpointError>("it is of a run with {} = {}, this one has {}", name,
                            before.contains(name) ? shown(before[name]) : "nothing",
                            shown(now[name]));
  });
  for (const auto& [name, value] : before.items())
    if (!now.contains(name))
      fail<CheckpointError>("it is of a run with an option '{}', which is unknown", excerpt(name));
}

std::vector<std::string> changed_options(const TrainOptions& options,
                                         const std::string& of_checkpoint) {
  const Json before = Json::parse(of_checkpoint),
             now = chosen(options, [](Resume r) { return r == Resume::may_change; });
  std::vector<std::string> changed;
  for (const auto& [name, value] : now.items())
    if (before.at(name) != value)
      changed.push_back(fmt::format("{} {} -> {}", name, before.at(name).dump(), value.dump()));
  return changed;
}

}  // namespace tutti::examples
