#include "evaluation.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/trace.h>
#include <tutti/nn/functional/loss.h>

namespace tutti::examples {

LossAndAccuracy evaluate(nn::Layer& net, data::DataLoader& loader, const ProcessGroup& group,
                         Device device, TestRecorder* recorder) {
  const trace::Span span("evaluate");
  const NoGrad no_grad;
  net.eval();
  MetricSums sums(device);
  while (const auto batch = loader.next()) {
    sums.count(batch->global_size);
    if (batch->images.size(0) == 0) continue;
    const Tensor logits = net(batch->images.to(device)), labels = batch->labels.to(device);
    sums.add(nn::cross_entropy(logits, labels, {.reduction = nn::LossReduction::sum}),
             predicted_classes(logits), labels);
    if (recorder) recorder->add(logits, labels, batch->indices);
  }
  net.train();
  return sums.take(group);
}

}  // namespace tutti::examples
