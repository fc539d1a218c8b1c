#include "evaluation.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/trace.h>
#include <tutti/nn/functional/loss.h>

namespace tutti::examples {

LossAndAccuracy evaluate(nn::Layer& net, Loader& loader, std::int64_t samples,
                         const ProcessGroup& group, Device device, TestRecorder& recorder) {
  const trace::Span span("evaluate");
  const NoGrad no_grad;
  net.eval();
  MetricSums sums(device);
  for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const Batch batch = loader.batch(0, i);
    if (batch.images.size(0) == 0) continue;
    const Tensor logits = net(batch.images);
    sums.add(nn::cross_entropy(logits, batch.labels, {.reduction = nn::LossReduction::sum}), logits,
             batch.labels);
    recorder.add(logits, batch.labels, batch.indices);
  }
  net.train();
  sums.count(samples);
  return sums.take(group);
}

}  // namespace tutti::examples
