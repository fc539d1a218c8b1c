// How well a network does on test images, over all ranks: sums of losses and correct answers,
// which training keeps as well, and the details that report.html shows. Rows of metrics are
// metrics.h's business.
#pragma once

#include <tutti/core/tensor.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/metric_sums.h>
#include <tutti/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::examples {

/// Returns `mine` of every rank, in a tensor with the ranks as its first dimension. `name` is that
/// of the collective.
Tensor gather_from_ranks(const Tensor& mine, const ProcessGroup& group, const std::string& name);

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

}  // namespace tutti::examples
