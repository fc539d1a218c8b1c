#include "batch_norm_check.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>

#include <fmt/format.h>
#include <algorithm>
#include <utility>

namespace tutti::examples {

namespace {

// The statistics are those of other batches than the ones that training sees next.
data::DataLoader::Options with_own_order(data::DataLoader::Options options) {
  options.sampler.seed += 1'000'003;
  return options;
}

}  // namespace

std::string to_string(const BatchNormCheck& check) {
  return fmt::format(
      "batch normalisation, on {} training batches:\n{}test accuracy {:.4f} (loss {:.4f}) with "
      "running statistics, {:.4f} (loss {:.4f}) with recomputed ones",
      check.batches, check.report.to_string(), check.running.accuracy, check.running.loss,
      check.recomputed.accuracy, check.recomputed.loss);
}

StatisticsBatches::StatisticsBatches(std::shared_ptr<const data::Dataset> images,
                                     data::DataLoader::Options options, std::int64_t batches,
                                     const ProcessGroup& group, Device device)
    : loader_(std::move(images), with_own_order(std::move(options))), device_(device) {
  const Tensor count = full({}, static_cast<double>(std::min(batches, loader_.batches_per_epoch())),
                            {.dtype = int64});
  group.all_reduce(count, distributed::ReduceOp::min, {.name = "statistics batches"}).wait();
  count_ = count.item<std::int64_t>();
}

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
