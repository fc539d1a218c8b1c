#include "captured_step.h"

#include "../core/trace.h"

#include <fmt/format.h>

#include <utility>

namespace tutti::optim {
namespace {

constexpr int eager_steps = 3;  // before a step is captured

}  // namespace

CapturedStep::CapturedStep(Step step, Device device, Say say)
    : step_(std::move(step)), device_(device), say_(std::move(say)) {}

void CapturedStep::run(const std::vector<Tensor>& inputs, std::int64_t global_size) {
  if (!cannot_capture_ && !graph_ && ++steps_ > eager_steps) capture(inputs, global_size);
  if (!graph_) return step_(inputs, global_size);
  if (fits_graph(inputs, global_size)) {
    const trace::Span span("replay");
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) captured_[i].copy_(inputs[i]);
    return graph_->replay();
  }
  if (!std::exchange(has_said_misfit_, true))
    say_(
        fmt::format("cuda graph: not for batches of {} samples ({} here), since {} ({} here) were "
                    "recorded; these steps run as they are",
                    global_size, to_string(inputs.at(0).shape()), captured_size_,
                    to_string(captured_[0].shape())));
  step_(inputs, global_size);
}

bool CapturedStep::fits_graph(const std::vector<Tensor>& inputs, std::int64_t global_size) const {
  bool fits = global_size == captured_size_ && inputs.size() == captured_.size();
  for (std::size_t i = 0; fits && i < inputs.size(); ++i)
    fits = inputs[i].defined() == captured_[i].defined() &&
           (!inputs[i].defined() || inputs[i].shape() == captured_[i].shape());
  return fits;
}

void CapturedStep::capture(const std::vector<Tensor>& inputs, std::int64_t global_size) {
  const trace::Span span("record");
  captured_.clear();
  for (const Tensor& input : inputs) captured_.push_back(input.defined() ? input.clone() : input);
  captured_size_ = global_size;
  try {
    graph_.emplace(device_, [this] { step_(captured_, captured_size_); });
    say_(fmt::format("cuda graph: {} nodes recorded at step {}", graph_->size(), steps_));
  } catch (const DeviceError& error) {
    cannot_capture_ = true;
    say_(fmt::format("cuda graph: none, steps run as they are: {}", error.what()));
  }
}

}  // namespace tutti::optim
