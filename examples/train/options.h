// TrainOptions: what the trainer can be told, the command line that tells it, and which options a
// resumed run may have changed. The table of all options is in options.cpp.
#pragma once

#include <tutti/core/dtype.h>
#include <tutti/core/tensor.h>
#include <tutti/data/segmentation_folder.h>
#include <tutti/distributed/process_group.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tutti::examples {

/// Whether a network says the class of an image, or that of each pixel. train_resnet trains the
/// first, train_segmentation the second.
enum class Task { classification, segmentation };

/// Returns "train_resnet" or "train_segmentation".
const char* program_name(Task task);

/// The main function of these programs (program.cpp): reads the command line, trains or tests as it
/// says, and returns the exit code (trainer.h). Prints each error as one line on standard error.
/// Every process of a launcher calls it.
int run_program(int argc, char** argv, Task task);

/// How weights are updated.
struct OptimizerOptions {
  std::string name = "sgd";  ///< sgd, adam, adamw or lars
  double lr = 0.1;           ///< the highest learning rate of the schedule
  double momentum = 0.9;     ///< of sgd and lars
  bool nesterov = true;      ///< Nesterov's momentum in sgd
  double weight_decay = 5e-4;
  bool norm_decay = true;  ///< Weights of normalisation and biases decay, too.
  double clip_norm = 0;    ///< The largest norm of all gradients together; 0 for any.
  double ema = 0;          ///< The decay of averaged weights, tested and saved; 0 for none.
  double backbone_lr = 1;  ///< The rate of the backbone as a part of that of the heads.
};

/// How the learning rate changes in a run.
struct ScheduleOptions {
  std::string name = "one_cycle";  ///< one_cycle, cosine, poly, steps, constant or plateau
  /// Epochs in which the rate rises to its highest value, before the rest.
  std::int64_t warmup = 0;
  std::vector<std::int64_t> milestones = {};  ///< of steps: epochs after which the rate falls
  double gamma = 0.1;  ///< of steps and plateau: the factor by which the rate falls
  /// Of plateau: epochs without a better test loss that are accepted. The next one lowers the rate.
  std::int64_t plateau_patience = 10;
};

/// What happens to training images and labels beyond the transforms of the dataset.
struct AugmentationOptions {
  double label_smoothing = 0;  ///< the share of the uniform distribution in the labels
  double mixup = 0;   ///< alpha of the Beta distribution of the weights of two images; 0 for none
  double cutmix = 0;  ///< alpha of the Beta distribution of pasted areas; 0 for none
};

/// What segmentation needs to know.
struct SegmentationOptions {
  std::int64_t crop = 256;                ///< the side of the squares that training sees
  double min_scale = 0.5, max_scale = 2;  ///< of images, before they are cropped
  double auxiliary = 0;     ///< the weight of an auxiliary head's loss; 0 for no such head
  std::int64_t width = 64;  ///< the channels of a U-Net at full resolution
  /// How masks lie to pictures that EXIF data turn, where the sizes do not tell.
  data::MaskOrientation mask_orientation = data::MaskOrientation::by_size;
};

struct TrainOptions {
  Task task = Task::classification;
  SegmentationOptions segmentation = {};
  std::string dataset = "fashion-mnist";
  std::string data;  ///< The folder of the data files; empty for the dataset's usual one.
  std::int64_t image_size = 0;  ///< of a folder: height and width that the network gets; else 0
  std::string model = "resnet20";
  /// The last normalisation of each residual block begins with a weight of 0.
  bool zero_init = false;
  std::int64_t epochs = 2;
  std::int64_t max_steps = 0;     ///< The run stops after so many steps; 0 for no limit.
  std::int64_t batch_size = 128;  ///< The global batch, over all ranks.
  /// The last batch of an epoch is left out if it is not full.
  bool drop_last = false;
  /// The micro batches that a rank computes a step in, so that it needs memory for one of them.
  std::int64_t accumulate = 1;
  int ranks = 1;    ///< The number of ranks that are threads of this process.
  int threads = 0;  ///< The threads that each rank computes with; 0 for its share of the cores.
  int workers = 1;  ///< The threads that load images for each rank; 0 for the computing thread.
  /// How long a rank waits for the others: at the start and in every collective.
  std::chrono::milliseconds timeout = ProcessGroup::default_timeout;
  OptimizerOptions optimizer = {};
  ScheduleOptions schedule = {};
  AugmentationOptions augmentation = {};
  std::uint64_t seed = 0;
  std::string weights;              ///< The file that a new run begins with; empty for none.
  std::vector<std::string> freeze;  ///< Patterns of nn::freeze(): what does not train.
  bool sync_bn = true;
  /// The ranks that share statistics: world, host, or a number of ranks.
  std::string sync_bn_scope = "world";
  /// The training batches on which running statistics are recomputed before each evaluation; 0 for
  /// none.
  std::int64_t recompute_statistics = 0;
  /// Outputs of batch normalisation are computed again in backward instead of being kept.
  bool recompute_output = false;
  bool bn_report = false;  ///< The batch normalisation is examined at the end of each epoch.
  /// float32 or float64; or bfloat16 or float16, through Autocast with float32 weights.
  DType precision = float32;
  Device device = {};
  bool cuda_graph = false;  ///< Steps are captured as a CUDA graph and replayed.
  bool allow_tf32 = false;  ///< Float32 products and convolutions may round inputs to TF32 (CUDA).
  bool autotune = false;    ///< The first convolutions of each shape time several plans (CUDA).
  std::int64_t log_every = 10;  ///< Steps between two rows of metrics.
  /// Steps between two checkpoints, in addition to those at the end of each epoch; 0 for none.
  std::int64_t checkpoint_every = 0;
  bool keep_best = false;      ///< best.safetensors gets the weights with the best test accuracy.
  std::int64_t keep_last = 0;  ///< The checkpoints of so many last epochs are kept.
  bool resume = false;  ///< The run continues from the run folder's checkpoint, if there is one.
  /// The files of an older run in the run folder are removed.
  bool overwrite = false;
  /// The program describes the run instead of making it.
  bool dry_run = false;
  bool check_files = false;  ///< A dry run decodes every picture of a folder.
  /// The program tests weights instead of training.
  bool test_only = false;
  std::string trace;  ///< The file of a timeline; empty for none.
  std::string out;    ///< The run folder; empty for runs/DATASET-MODEL.
  /// The flags that were given, with their values: config.json keeps them for --resume.
  std::map<std::string, std::string> flags = {};
};

/// Returns the options of a program without flags.
TrainOptions default_options(Task task);

/// The value of pixels without a class.
constexpr std::int64_t no_class = 255;

/// Returns how many labels a training image has: one, or one for each pixel.
inline std::int64_t labels_per_image(const TrainOptions& options) {
  const std::int64_t side = options.segmentation.crop;
  return options.task == Task::segmentation ? side * side : 1;
}

/// Returns what a test measures, as a person reads it and as a key: "test accuracy" and
/// "test_accuracy", or "mIoU" and "test_miou".
const char* score_name(const TrainOptions& options);
const char* score_key(const TrainOptions& options);

/// Returns the name of the dataset, or of the user's own folder of pictures.
std::string name_of_data(const TrainOptions& options);

/// A wrong flag or value. The message is one line.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Reads the command line into `options`, which are default_options() of a task. Flags that are not
/// given come from `saved_flags`, what flags_of_old_run() has returned. Returns false where help or
/// the version was asked for. With `prints` it prints these, and the flags that were not given.
/// Throws a UsageError.
bool parse(int argc, const char* const* argv, TrainOptions& options, bool prints = true,
           const std::string& saved_flags = {});

/// Returns the flags with which the run folder's run was started, as JSON text, where the command
/// line has --resume or --test-only; empty where there is no such run. Those that mean another
/// thing in this call are left out, such as --ranks where there are several processes. Throws a
/// UsageError for a config.json that cannot be read. Only rank 0 needs to see the run folder.
std::string flags_of_old_run(int argc, const char* const* argv, Task task, int processes);

/// Returns all options that must be the same on every rank, as lines for
/// distributed::check_same_on_ranks(). Folders, cores and devices are each host's own.
std::string settings_of_ranks(TrainOptions options);

/// Returns whether the command line has a flag, such as "--lr".
using FlagGiven = std::function<bool(const std::string& flag)>;

/// Fills in the defaults that depend on other options. Throws a UsageError that names a flag which
/// would do nothing, or which contradicts another one.
void complete(TrainOptions& options, const FlagGiven& is_given);

/// Returns the options, with defaults filled in, as the JSON text that config.json holds.
std::string to_json(const TrainOptions& options);

/// Returns the options on which the numbers of a run depend, as the JSON text that a checkpoint
/// holds.
std::string options_of_checkpoint(const TrainOptions& options);

/// Throws a CheckpointError that names the first difference where `options` cannot go on with the
/// run of a checkpoint with these options.
void check_same_options(const TrainOptions& options, const std::string& of_checkpoint);

/// Returns lines such as "lr 0.1 -> 0.05" of the options, some of epochs, max_steps and lr, with
/// which `options` continue the run of a checkpoint in another way.
std::vector<std::string> changed_options(const TrainOptions& options,
                                         const std::string& of_checkpoint);

}  // namespace tutti::examples
