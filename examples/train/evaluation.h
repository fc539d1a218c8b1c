// How well a network does on test images, over all ranks: sums of losses and correct answers,
// which training keeps as well, and the confusion matrix that report.html shows. Rows of metrics
// are metrics.h's business.
#pragma once

#include "options.h"

#include <tutti/core/tensor.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/metric_sums.h>
#include <tutti/nn/module.h>

#include <cstdint>

namespace tutti::examples {

struct LossAndAccuracy {
  double loss = 0, accuracy = 0;
};

/// Returns the class of each position of logits (n, classes, ...), int64 (n, ...): that of the
/// largest logit, or -1 if that or any other logit is not a number, or the largest one is not
/// finite.
Tensor predicted_classes(const Tensor& logits);

/// Sums of the loss, of correct answers and of labels over samples. Pixels of `no_class` are no
/// labels.
class LossSums : public distributed::MetricSums {
 public:
  static constexpr std::int64_t figures = 3;
  explicit LossSums(Device device) : MetricSums(figures, device) {}
  /// Adds a batch of this rank: the sum of its losses, its answers and its labels, which are
  /// classes, both (n), or (n, height, width) where each pixel has one.
  void add(const Tensor& loss_sum, const Tensor& answers, const Tensor& labels);
  /// Returns the means over the labels of all ranks since the last call, and starts anew; zeros
  /// where there are none. This call is collective.
  LossAndAccuracy take(const ProcessGroup& group);
};

/// The results of a test of the network, the same on every rank.
struct TestResult {
  LossAndAccuracy means;
  /// nn::ConfusionMatrix::table() of images or pixels; undefined for more than
  /// most_confusion_classes classes.
  Tensor confusion = {};
};

constexpr std::int64_t most_confusion_classes = 1000;

/// Evaluates `net` in evaluation mode on an epoch of `loader`, and puts it back into training mode.
/// Every rank calls it with its loader of the same test images; it communicates at its end only.
/// The means are those over the images, or over the pixels that have a class, whose accuracy is the
/// mean IoU. An answer whose logits are not finite counts as no class.
TestResult evaluate(nn::Layer& net, data::DataLoader& loader, std::int64_t classes,
                    const ProcessGroup& group, Device device, Task task);

}  // namespace tutti::examples
