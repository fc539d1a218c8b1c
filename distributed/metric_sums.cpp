#include "metric_sums.h"

#include "../autograd/grad_mode.h"

#include <algorithm>

namespace tutti::distributed {

MetricSums::MetricSums(std::int64_t figures, Device device)
    : sums_(zeros({figures}, {.dtype = float64, .device = device})) {}

void MetricSums::add(const std::vector<Tensor>& figures) {
  const NoGrad no_grad;
  for (std::size_t i = 0; i < figures.size(); ++i)
    sums_.select(0, static_cast<std::int64_t>(i)).add_(figures[i].detach().to(float64));
}

std::vector<double> MetricSums::take(const ProcessGroup& group) {
  group.all_reduce(sums_, ReduceOp::sum, {.name = "metrics"}).wait();
  std::vector<double> means = to_vector(sums_);
  for (double& mean : means) mean /= static_cast<double>(std::max<std::int64_t>(samples_, 1));
  sums_.zero_();
  samples_ = 0;
  return means;
}

void MetricSums::restore(const Tensor& sums, std::int64_t samples) {
  sums_.copy_(sums);
  samples_ = samples;
}

}  // namespace tutti::distributed
