#include "metric_sums.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>

#include <algorithm>

namespace tutti::examples {

Tensor predicted_classes(const Tensor& logits) {
  const NoGrad no_grad;
  const Tensor values = logits.detach(), largest = max(values, {1});  // NaN if any is NaN
  return masked_fill(argmax(values, 1), ne(largest - largest, 0.0), -1);
}

MetricSums::MetricSums(Device device) : sums_(zeros({2}, {.dtype = float64, .device = device})) {}

void MetricSums::add(const Tensor& loss_sum, const Tensor& answers, const Tensor& labels) {
  const NoGrad no_grad;
  const Tensor correct = eq(answers, labels);
  sums_.slice(0, 0, 1).add_(loss_sum.detach().to(float64));
  sums_.slice(0, 1, 2).add_(sum(correct).to(float64));
}

LossAndAccuracy MetricSums::take(const ProcessGroup& group) {
  group.all_reduce(sums_, distributed::ReduceOp::sum, {.name = "metrics"}).wait();
  const std::vector<double> sums = to_vector(sums_);
  const auto samples = static_cast<double>(std::max<std::int64_t>(samples_, 1));
  sums_.zero_();
  samples_ = 0;
  return {.loss = sums[0] / samples, .accuracy = sums[1] / samples};
}

void MetricSums::restore(const Tensor& sums, std::int64_t samples) {
  sums_.copy_(sums);
  samples_ = samples;
}

}  // namespace tutti::examples
