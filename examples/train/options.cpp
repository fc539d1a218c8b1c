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
#include <tutti/nn/resnet.h>

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
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
      {"--broken-files",
       one_of(o.broken_files,
              {{"fatal", data::BrokenFiles::fatal}, {"replaced", data::BrokenFiles::replaced}}),
       is_unchecked, always,
       "With --dataset folder, pictures that cannot be decoded: fatal, or replaced by the next "
       "one, counted and named at the end"},
      {"--check-files", flag(o.check_files), is_unsaved, always,
       "With --dry-run and --dataset folder, decode every picture and list those that are broken"},
      {"--model", name_of(o.model, nn::resnet_names()), must_equal, always,
       fmt::format("{}; resnet20 to resnet56 are for small images; with --dataset folder the "
                   "default is resnet18",
                   fmt::join(nn::resnet_names(), ", "))},
      {"--zero-init,!--no-zero-init", flag(o.zero_init), must_equal, training,
       "Begin with a weight of 0 in the last normalisation of each residual block, so that the "
       "block passes on its input, or with 1 (the default)"},
      {"--workers", plain(o.workers, between(0, 256)), is_unchecked, always,
       "Threads that load images for each rank; 0 loads between the steps"},
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
      {"--rotation", plain(s.rotation, between(0.0, 180.0)), must_equal, training,
       "Largest angle in degrees that training pictures are turned by, to either side"},
      {"--color-jitter", plain(s.color, between(0.0, 1.0)), must_equal, training,
       "Largest relative change of the brightness, contrast and saturation of training pictures"},
      {"--workers", plain(o.workers, between(0, 256)), is_unchecked, always,
       "Threads that load images for each rank; 0 loads between the steps"},
      {"--backbone-lr", plain(o.optimizer.backbone_lr, between(0.0, 1.0)), must_equal, training,
       "Learning rate of the backbone as a part of that of the heads, such as 0.1"},
      {"--batch-norm", one_of(o.sync_bn, {{"sync", true}, {"local", false}}), must_equal, always,
       "Batch normalisation over the global batch (sync), or over each rank's own part of it"},
  };
}

std::vector<Option> length_options(TrainOptions& o) {
  return {
      {"--epochs", plain(o.epochs, positive(1'000'000)), may_change, training,
       "Passes over the training images"},
      {"--max-steps", plain(o.max_steps, not_negative_whole()), may_change, training,
       "Stop after this many steps, 0 for no limit; the schedule fits itself in"},
      {"--patience", plain(o.patience, not_negative_whole()), may_change, training,
       "Stop early after this many epochs without a better test accuracy; 0 for never"},
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
      {"--recipe", name_of(all.recipe, recipe_names()), is_unsaved, training,
       "Set the flags that are not given to those of a known recipe: imagenet, for ResNet-50 "
       "(docs/train.md)"},
      {"--optimizer", name_of(o.name, optimizer_names()), must_equal, training,
       "sgd, adam, adamw or lars"},
      {"--lr", plain(o.lr, positive(), false), may_change, training,
       fmt::format("Highest learning rate of the schedule (default: {}; 0.001 for adam and adamw)",
                   default_options(all.task).optimizer.lr)},
      {"--momentum", plain(o.momentum, between(0.0, 0.9999)), must_equal, training,
       "Momentum of sgd and lars; with --schedule one_cycle 0 cycles it against the rate, 0.95 to "
       "0.85 and back"},
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
      {"--seed", plain(all.seed, not_negative_whole<std::uint64_t>()), must_equal, always,
       "Seed of the weights, the shuffling and the augmentation"},
  };
}

std::vector<Option> schedule_options(ScheduleOptions& s) {
  return {
      {"--schedule", name_of(s.name, schedule_names()), must_equal, training,
       "Learning rate over the run: one_cycle (up and down), cosine (down to 0), poly (down to 0, "
       "nearly in a line), steps (down by --gamma after each of --milestones), constant, or "
       "plateau (down by --gamma where the test loss stays)"},
      {"--warmup",
       plain(s.warmup,
             in_range<std::int64_t>(0, 1'000'000, "a whole number of 0 to 1000000", "NONNEGATIVE")),
       must_equal, training,
       "Epochs in which the rate rises from a hundredth to --lr, with every schedule but "
       "one_cycle"},
      {"--milestones", milestones(s.milestones), must_equal, training,
       "With --schedule steps, the epochs after which the rate falls, as in 30,60,80"},
      {"--gamma", plain(s.gamma, between(0.0, 0.9999)), must_equal, training,
       "With --schedule steps or plateau, the factor by which the rate falls"},
      {"--plateau-patience", plain(s.plateau_patience, not_negative_whole()), must_equal, training,
       "With --schedule plateau, the epochs without a better test loss that are accepted before "
       "the rate falls"},
  };
}

std::vector<Option> rank_options(TrainOptions& o) {
  using distributed::Uneven;
  return {
      {"--ranks", plain(o.ranks, between(1, 1024)), is_unchecked, always,
       "Ranks that are threads of this process; leave at 1 under mpirun"},
      {"--threads", plain(o.threads, between(0, std::max(256, available_cores()))), is_unchecked,
       always, "Threads each rank computes with, 0 for its share of the cores"},
      {"--sharded", flag(o.sharded), must_equal, training,
       "Each rank trains on its own part of the images, in batches of its own, instead of on its "
       "part of every global batch"},
      {"--uneven",
       one_of(o.uneven,
              {{"shadow", Uneven::shadow}, {"stop", Uneven::stop}, {"error", Uneven::error}}),
       must_equal, always,
       "With --sharded, ranks whose images are used up before those of the others in an epoch: "
       "shadow (go on with empty batches), stop (the epoch ends for all) or error"},
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
      {"--recompute-statistics", plain(o.recompute_statistics, not_negative_whole()), must_equal,
       training,
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
      {"--precision", precision(o.precision), must_equal, always,
       "float32; bf16: convolutions and matrix products in bfloat16, all else in float32; fp16: "
       "the same in float16, with loss scaling, on cuda only; or float64: plain reference code, "
       "slow"},
      {"--device",
       parsed([&o](const std::string& text) { o.device = Device::from_string(text); },
              [&o] { return to_string(o.device); }),
       is_unchecked, always,
       "cpu, cuda or cuda:INDEX; with cuda, rank r takes device r of its host, and ranks share "
       "devices where there are fewer of them"},
      {"--cuda-graph,!--no-cuda-graph", flag(o.cuda_graph), must_equal, training,
       "With --device cuda, record a step, the optimizer included, once and replay it, which "
       "costs the host one launch for each step (the default but for --accumulate and --sharded); "
       "where that cannot be done it says why and goes on without"},
      {"--allow-tf32", flag(o.allow_tf32), must_equal, always,
       "With --device cuda, let convolutions and matrix products in float32 round their inputs to "
       "TF32 (10 bits of mantissa), as PyTorch's convolutions do"},
      {"--autotune", flag(o.autotune), must_equal, always,
       "With --device cuda, time several of cuDNN's algorithms at the first convolution of each "
       "shape and keep the fastest; two runs may then differ in their last bits"},
      {"--memory-format",
       one_of(o.memory_format, {{"channels_last", MemoryFormat::channels_last},
                                {"contiguous", MemoryFormat::contiguous}}),
       must_equal, always, "channels_last (fast) or contiguous"},
  };
}

std::vector<Option> weights_options(TrainOptions& o) {
  return {
      {"--weights", path(o.weights), is_unchecked, always,
       "Begin with the weights of this safetensors file: of a run, of a checkpoint, or of "
       "import_torchvision.py; a head for another number of classes is replaced by a fresh one, "
       "and train_segmentation takes those of a ResNet for the backbone"},
      {"--freeze", patterns(o.freeze), must_equal, training,
       "Do not train what matches these patterns, as in 'conv1.*,bn1.*,layer1.*'; batch "
       "normalisation among it uses its running statistics; may be given several times"},
      {"--test-only", flag(o.test_only), is_unsaved, always,
       "Print the loss and the accuracy of --weights, or else of the run folder's weights, on the "
       "test images, and exit without writing anything"},
      {"--keep-best", flag(o.keep_best), is_unchecked, training,
       "Keep the weights with the best test accuracy so far as best.safetensors"},
      {"--keep-last", plain(o.keep_last, not_negative_whole()), is_unchecked, training,
       "Keep the checkpoints of this many last epochs, too, as checkpoint-epoch-NNNN.safetensors; "
       "0 for none"},
  };
}

std::vector<Option> output_options(TrainOptions& o) {
  return {
      {"--log-every", plain(o.log_every, positive(1'000'000'000)), is_unchecked, training,
       "Steps between two lines of metrics.jsonl"},
      {"--checkpoint-every", plain(o.checkpoint_every, not_negative_whole()), is_unchecked,
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
      {"--tensorboard", flag(o.tensorboard), is_unchecked, training,
       "Write the metrics as event files into the run folder, too: tensorboard --logdir runs"},
      {"--trace", path(o.trace), is_unsaved, always,
       "Write a timeline of the run to this file, to be opened at ui.perfetto.dev; keep the run "
       "short: a step has hundreds of events"},
      {"--out", path(o.out), is_unchecked, always,
       "Run folder for metrics, weights and report (default: runs/DATASET-MODEL)"},
  };
}

// Removes the options that mean nothing where each pixel has a class.
void keep_those_of_segmentation(std::vector<OptionSection>& table) {
  for (OptionSection& section : table)
    std::erase_if(section.options, [](const Option& option) {
      constexpr std::array others{"--recipe", "--sharded", "--uneven", "--sync-bn"};
      return std::ranges::count(others, option.flag()) > 0;
    });
}

std::vector<OptionSection> whole_table(TrainOptions& o) {
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

// Returns the table of the options' task, whose values refer to `o`.
std::vector<OptionSection> option_table(TrainOptions& o) {
  std::vector<OptionSection> table = whole_table(o);
  if (o.task == Task::segmentation) keep_those_of_segmentation(table);
  return table;
}

constexpr const char* exit_codes =
    "Exit codes: 0 success (also a run that --patience ended), --help, --version, --dry-run or\n"
    "--test-only; 1 a failure such as a full disk, a loss that is not finite or another rank that\n"
    "failed; 2 a wrong flag, or data, weights or a checkpoint that cannot be used; 3 stopped by\n"
    "SIGTERM, SIGINT, SIGUSR1 or SIGHUP, with a checkpoint: --resume goes on. A second signal ends "
    "the program at once.";

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

const char* program_name(Task task) {
  return task == Task::segmentation ? "train_segmentation" : "train_resnet";
}

const char* score_name(const TrainOptions& options) {
  return options.task == Task::segmentation ? "mIoU" : "test accuracy";
}

const char* score_key(const TrainOptions& options) {
  return options.task == Task::segmentation ? "test_miou" : "test_accuracy";
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

bool parse(int argc, const char* const* argv, TrainOptions& o, bool print_help) {
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
  const auto is_given = [&](const std::string& flag) {
    const CLI::Option* const option = app.get_option_no_throw(flag);  // null in the other program
    return option && option->count() > 0;
  };
  check_test_only(o, is_given);
  complete(o, is_given);
  return true;
}

std::string to_json(const TrainOptions& o) {
  return chosen(o, [](Resume r) { return r != Resume::is_unsaved; }).dump(2) + "\n";
}

std::string options_of_checkpoint(const TrainOptions& o) { return comparable(o).dump(); }

void check_same_options(const TrainOptions& options, const std::string& of_checkpoint) {
  const Json before = Json::parse(of_checkpoint, nullptr, false), now = comparable(options);
  if (!before.is_object()) fail<CheckpointError>("its options cannot be read");
  TrainOptions o = options, defaults = default_options(o.task);
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
