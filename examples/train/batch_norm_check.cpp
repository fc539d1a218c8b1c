#include "batch_norm_check.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/trace.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>

#include <fmt/format.h>
#include <algorithm>
#include <utility>

namespace tutti::examples {

std::string describe(const BatchNormCheck& check, const char* score) {
  return fmt::format(
      "batch normalisation, on {} training batches:\n{}{} {:.4f} (loss {:.4f}) with "
      "running statistics, {:.4f} (loss {:.4f}) with recomputed ones (--recompute-statistics {})",
      check.batches, check.report.to_string(), score, check.running.accuracy, check.running.loss,
      check.recomputed.accuracy, check.recomputed.loss, check.batches);
}

StatisticsBatches::StatisticsBatches(std::shared_ptr<const data::Dataset> images,
                                     data::DataLoader::Options options, std::int64_t batches,
                                     Device device)
    : loader_(std::move(images), std::move(options)),
      device_(device),
      count_(std::min(batches, loader_.batches_per_epoch())) {}

void StatisticsBatches::run(nn::Layer& net, std::int64_t epoch) {
  const trace::Span span("statistics");
  const NoGrad no_grad;
  loader_.set_state({.epoch = epoch, .batch = 0});
  for (std::int64_t i = 0; i < count_; ++i) net(loader_.next().value().images.to(device_));
}

BatchNormCheck check_batch_norm(nn::Layer& net, const std::function<void()>& run_batches,
                                const std::function<LossAndAccuracy()>& evaluate,
                                const ProcessGroup& group) {
  BatchNormCheck check{.report = nn::batch_norm_report(net, run_batches, group),
                       .running = evaluate()};
  std::vector<std::pair<Tensor, Tensor>> before;
  for (const auto& [name, buffer] : net.named_buffers())
    before.emplace_back(buffer, buffer.clone());
  nn::recompute_statistics(net, run_batches, group);
  check.recomputed = evaluate();
  for (const auto& [buffer, value] : before) buffer.copy_(value);
  return check;
}

}  // namespace tutti::examples
