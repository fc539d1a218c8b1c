#include "step.h"

#include <tutti/core/trace.h>

#include <fmt/format.h>

namespace tutti::examples {
namespace {

constexpr int steps_before = 3;

}  // namespace

Step::Step(Work work, std::optional<Device> graph_on, Say say)
    : work_(std::move(work)), device_(graph_on), say_(std::move(say)) {}

bool Step::fits(const Batch& batch) const {
  return batch.images.shape() == recorded_.images.shape() &&
         batch.global_size == recorded_.global_size;
}

void Step::run(const Batch& batch) {
  if (device_ && !graph_ && ++steps_ > steps_before) record(batch);
  if (!graph_) return work_(batch);
  if (!fits(batch)) {
    if (!said_)
      say_(
          fmt::format("cuda graph: not for batches of {} images ({} here), since {} ({} here) were "
                      "recorded; these steps run as they are",
                      batch.global_size, to_string(batch.images.shape()), recorded_.global_size,
                      to_string(recorded_.images.shape())));
    said_ = true;
    return work_(batch);
  }
  const trace::Span span("replay");
  recorded_.images.copy_(batch.images);
  recorded_.labels.copy_(batch.labels);
  graph_->replay();
}

void Step::record(const Batch& batch) {
  const trace::Span span("record");
  recorded_ = {batch.images.clone(), batch.labels.clone(), batch.global_size};
  try {
    graph_.emplace(*device_, [this] { work_(recorded_); });
    say_(fmt::format("cuda graph: {} nodes recorded at step {}", graph_->size(), steps_));
  } catch (const DeviceError& error) {
    device_.reset();
    say_(fmt::format("cuda graph: none, steps run as they are: {}", error.what()));
  }
}

}  // namespace tutti::examples
