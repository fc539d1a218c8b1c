#include "evaluation.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/trace.h>
#include <tutti/nn/confusion_matrix.h>
#include <tutti/nn/functional/loss.h>

#include <cmath>

namespace tutti::examples {

// ---- sums

Tensor predicted_classes(const Tensor& logits) {
  const NoGrad no_grad;
  const Tensor values = logits.detach(), largest = max(values, {1});  // NaN if any is NaN
  return masked_fill(argmax(values, 1), ne(largest - largest, 0.0), -1);
}

void LossSums::add(const Tensor& loss_sum, const Tensor& answers, const Tensor& labels) {
  const NoGrad no_grad;
  const double ignored = labels.rank() == 3 ? no_class : -1;  // no label of an image is negative
  MetricSums::add({loss_sum, sum(eq(answers, labels)), sum(ne(labels, ignored))});
}

LossAndAccuracy LossSums::take(const ProcessGroup& group) {
  const std::vector<double> means = MetricSums::take(group);
  const double labels = means[2] > 0 ? means[2] : 1;
  return {.loss = std::isnan(means[0]) ? NAN : means[0] / labels,  // never -nan
          .accuracy = means[1] / labels};
}

// ---- evaluation

TestResult evaluate(nn::Layer& net, data::DataLoader& loader, std::int64_t classes,
                    const ProcessGroup& group, Device device, Task task) {
  const trace::Span span("evaluate");
  const bool segments = task == Task::segmentation, has_matrix = classes <= most_confusion_classes;
  const std::int64_t ignored = segments ? no_class : -1;  // no label of an image is negative
  const NoGrad no_grad;
  net.eval();
  LossSums sums(device);
  nn::ConfusionMatrix matrix(has_matrix ? classes : 1, ignored);
  while (const auto batch = loader.next()) {
    sums.count(batch->global_size);
    if (batch->images.size(0) == 0) continue;
    const Tensor logits = net(batch->images.to(device)), labels = batch->labels.to(device),
                 predicted = predicted_classes(logits);
    sums.add(nn::cross_entropy(logits, labels,
                               {.reduction = nn::LossReduction::sum, .ignore_index = ignored}),
             predicted, labels);
    if (has_matrix) matrix.add(predicted, labels);
  }
  net.train();
  TestResult result{.means = sums.take(group)};
  if (!has_matrix) return result;
  matrix.all_reduce(group);
  result.confusion = matrix.table();
  if (!segments) return result;
  const double score = matrix.mean_iou();  // NaN where no pixel has a class
  result.means.accuracy = std::isnan(score) ? 0 : score;
  return result;
}

}  // namespace tutti::examples
