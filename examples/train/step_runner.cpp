#include "step_runner.h"

#include <tutti/core/trace.h>

#include <fmt/format.h>

#include <utility>

namespace tutti::examples {
namespace {

constexpr int eager_steps = 3;  // before a step is captured

}  // namespace

StepRunner::StepRunner(Step step, GraphChoice graph, Say say)
    : step_(std::move(step)), choice_(std::move(graph)), say_(std::move(say)) {}

void StepRunner::run(const data::Batch& batch) {
  say_why_not();
  if (choice_.device && !graph_ && ++steps_ > eager_steps) capture(batch);
  if (!graph_) return step_(batch);
  if (fits_graph(batch)) return replay(batch);
  if (!has_said_misfit_)
    say_(
        fmt::format("cuda graph: not for batches of {} images ({} here), since {} ({} here) were "
                    "recorded; these steps run as they are",
                    batch.global_size, to_string(batch.images.shape()), captured_.global_size,
                    to_string(captured_.images.shape())));
  has_said_misfit_ = true;
  step_(batch);
}

bool StepRunner::fits_graph(const data::Batch& batch) const {
  return batch.images.shape() == captured_.images.shape() &&
         batch.global_size == captured_.global_size;
}

void StepRunner::capture(const data::Batch& batch) {
  const trace::Span span("record");
  captured_ = {.images = batch.images.clone(),
               .labels = batch.labels.clone(),
               .soft_labels = batch.soft_labels.defined() ? batch.soft_labels.clone() : Tensor(),
               .global_size = batch.global_size};
  try {
    graph_.emplace(*choice_.device, [this] { step_(captured_); });
    say_(fmt::format("cuda graph: {} nodes recorded at step {}", graph_->size(), steps_));
  } catch (const DeviceError& error) {
    choice_ = {.why_not = error.what()};
    say_why_not();
  }
}

void StepRunner::say_why_not() {
  if (choice_.why_not.empty()) return;
  say_("cuda graph: none, steps run as they are: " + std::exchange(choice_.why_not, {}));
}

void StepRunner::replay(const data::Batch& batch) {
  const trace::Span span("replay");
  captured_.images.copy_(batch.images);
  captured_.labels.copy_(batch.labels);
  if (batch.soft_labels.defined()) captured_.soft_labels.copy_(batch.soft_labels);
  graph_->replay();
}

}  // namespace tutti::examples
