// TestRecorder: what a test of the network gives beside its means: which classes are taken for
// which, and the predictions that are worth a look. It keeps a few numbers for each sample on the
// device, and reads them once, at the end.
#pragma once

#include <tutti/core/tensor.h>
#include <tutti/distributed/process_group.h>

#include <vector>

namespace tutti::examples {

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

}  // namespace tutti::examples
