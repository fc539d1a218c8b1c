// The figures of a run: Metrics, a row of metrics.jsonl, and what follows from the rows alone (the
// best epoch, --patience, the table in a checkpoint); the evaluation of a network over all ranks,
// with the details that report.html shows; and the examination of batch normalisation.
#pragma once

#include <tutti/core/tensor.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>
#include <tutti/distributed/metric_sums.h>
#include <tutti/nn/batch_norm/report.h>
#include <tutti/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::examples {

/// How long a run is. `steps` may be less than epochs * steps_per_epoch.
struct RunLength {
  std::int64_t epochs = 0, steps_per_epoch = 0, steps = 0;
};

/// A row of metrics.jsonl: the training figures since the row before, and test figures at the end
/// of an epoch.
struct Metrics {
  std::int64_t epoch = 0;  ///< Counted from 1.
  std::int64_t step = 0;   ///< Counted from 1, over all epochs.
  double train_loss = 0;
  double train_accuracy = 0;
  double images_per_second = 0;  ///< Training images of all ranks; evaluation does not count.
  double learning_rate = 0;
  double data_waiting = 0;  ///< the part of the time in which rank 0 waited for training images
  std::optional<double> test_loss = {};
  std::optional<double> test_accuracy = {};
  /// What the ranks waited for in the epoch; only in its last row, where there are several ranks.
  std::optional<distributed::StragglerMonitor::Report> stragglers = {};
};

/// Returns the row with the best test accuracy, of several the first. A test whose loss is not
/// finite is never the best. Null if there is no other.
const Metrics* best_row(const std::vector<Metrics>& rows);

/// Returns the last row, which is one of the last epoch, with the means over that epoch's steps so
/// far in place of its own training figures.
Metrics epoch_means(const std::vector<Metrics>& rows);

/// Returns whether the rows end with the test results of this step.
bool is_tested(const std::vector<Metrics>& rows, std::int64_t step);

/// Returns whether the last row has test results and `patience` epochs, with it, have brought no
/// better accuracy than one before. Never with a patience of 0.
bool is_out_of_patience(const std::vector<Metrics>& rows, std::int64_t patience);

/// Returns a line about the epochs of `rows` together: who held up the others for how long, and how
/// long each rank waited. Empty where no epoch has a straggler report, as on one rank.
std::string straggler_summary(const std::vector<Metrics>& rows);

/// Returns `mine` of every rank, in a tensor with the ranks as its first dimension. `name` is that
/// of the collective.
Tensor gather_from_ranks(const Tensor& mine, const ProcessGroup& group, const std::string& name);

/// The number of columns of the table.
constexpr std::int64_t metrics_columns = 9;

/// Returns the rows as float64 (rows, metrics_columns). A test figure that a row does not have is
/// NaN.
Tensor to_table(const std::vector<Metrics>& rows);

/// Returns the rows of such a table, of a run that has made `step` steps. Throws a CheckpointError
/// that names the row and the column for a number that no run writes.
std::vector<Metrics> rows_from_table(const Tensor& table, std::int64_t step);

struct LossAndAccuracy {
  double loss = 0, accuracy = 0;
};

/// Returns the class of each row of logits (n, classes), int64 (n): that of the largest logit, or
/// -1 if that or any other logit is not a number, or the largest one is not finite.
Tensor predicted_classes(const Tensor& logits);

/// Sums of the loss and of correct answers over samples.
class LossSums : public distributed::MetricSums {
 public:
  explicit LossSums(Device device) : MetricSums(2, device) {}
  /// Adds a batch of this rank: the sum of its losses, its answers (n) and labels (n), both
  /// classes.
  void add(const Tensor& loss_sum, const Tensor& answers, const Tensor& labels);
  /// Returns the means over the samples of all ranks since the last call, and starts anew. This
  /// call is collective.
  LossAndAccuracy take(const ProcessGroup& group);
};

/// The answer of a network to one test image.
struct Prediction {
  std::int64_t index = 0;                 ///< The index of the image in its dataset.
  std::int64_t label = 0, predicted = 0;  ///< -1 for no class, as of logits that are not finite
  double probability = 0;                 ///< That of the predicted class.
};

/// The results of a test of the network. They are the same on every rank.
struct TestDetails {
  std::int64_t classes = 0;
  /// How many samples of class r were taken for class c: (classes, classes), row by row. A sample
  /// that was taken for no class is not among them. Empty for more than `most_confusion_classes`
  /// classes.
  std::vector<std::int64_t> confusion = {};
  /// The samples of each class, and how many of them were recognised.
  std::vector<std::int64_t> samples = {}, correct = {};
  /// Samples that were not recognised, those with the most certain answers, and a random choice of
  /// those that were. Different pairs of classes come first.
  std::vector<Prediction> wrong = {}, right = {};

  static constexpr std::int64_t most_confusion_classes = 1000;
  /// With segmentation, samples are pixels; some pictures that rank 0 has tested, with the class
  /// that the network says of each pixel, uint8 (height, width).
  std::vector<std::pair<std::int64_t, Tensor>> segmented = {};

  /// Returns how many samples of class `label` were taken for `predicted`; needs `confusion`.
  std::int64_t count(std::int64_t label, std::int64_t predicted) const {
    return confusion[static_cast<std::size_t>(label * classes + predicted)];
  }
};

class TestRecorder {
 public:
  /// `most_predictions` of each kind are kept.
  TestRecorder(std::int64_t classes, std::int64_t most_predictions);

  /// Adds a batch: logits (n, classes) and labels (n) on any device, and where the n samples stand
  /// in the dataset.
  void add(const Tensor& logits, const Tensor& labels, const std::vector<std::int64_t>& indices);
  /// Returns what all ranks have added since the last call, and starts anew. This call is
  /// collective.
  TestDetails take(const ProcessGroup& group);

 private:
  std::vector<Prediction> read_predictions();

  std::int64_t classes_, most_predictions_;
  std::vector<Tensor> answers_;  // of each batch: label, predicted class, probability: (3, n)
  std::vector<std::int64_t> indices_;
};

/// Evaluates `net` in evaluation mode on an epoch of `loader`, and puts it back into training mode.
/// Every rank calls it with its loader of the same test images; it communicates once, at its end.
/// `recorder` is given the answer to every image, unless it is null.
LossAndAccuracy evaluate(nn::Layer& net, data::DataLoader& loader, const ProcessGroup& group,
                         Device device, TestRecorder* recorder = nullptr);

/// The same for a network that classifies pixels, and a loader of single pictures, which may have
/// different sizes. Returns the mean over the pictures of the mean loss of their pixels, and as
/// accuracy the mean IoU over all pixels. The counts of all classes travel in one collective.
LossAndAccuracy evaluate_pixels(nn::Layer& net, data::DataLoader& loader, std::int64_t classes,
                                const ProcessGroup& group, Device device,
                                TestDetails* details = nullptr);

/// The result of --bn-report at the end of an epoch.
struct BatchNormCheck {
  nn::BatchNormReport report = {};
  std::int64_t batches = 0;  ///< the global batches of training images that the report has seen
  /// The test figures of the same weights with running statistics, and with those of the batches.
  LossAndAccuracy running = {}, recomputed = {};
};

/// Returns the report and the figures as text of several lines.
std::string to_string(const BatchNormCheck& check);

/// Forwards of a network on training batches, without gradients. Every rank runs the same number.
class StatisticsBatches {
 public:
  /// `options` are those of the loader of training images. Takes at most `batches` of an epoch.
  /// Collective: the ranks agree on a number of batches that all of them have.
  StatisticsBatches(std::shared_ptr<const data::Dataset> images, data::DataLoader::Options options,
                    std::int64_t batches, const ProcessGroup& group, Device device);

  /// Returns the number of global batches of one run.
  std::int64_t count() const { return count_; }
  /// Runs the forwards. The number of the epoch decides which images they see.
  void run(nn::Layer& net, std::int64_t epoch);

 private:
  data::DataLoader loader_;
  Device device_;
  std::int64_t count_ = 0;
};

/// Reports on the layers of `net`, and evaluates it with running and with recomputed statistics;
/// afterwards it has its running statistics again. Collective.
BatchNormCheck check_batch_norm(nn::Layer& net, const std::function<void()>& run_batches,
                                const std::function<LossAndAccuracy()>& evaluate,
                                const ProcessGroup& group);

}  // namespace tutti::examples
