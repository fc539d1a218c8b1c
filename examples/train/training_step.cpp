#include "training_step.h"

#include "batches.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/nn/functional/loss.h>

#include <algorithm>
#include <numeric>

namespace tutti::examples {

double StepTimes::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

StepTimer::Scope::Scope(StepTimer& timer, StepPart part)
    : timer_(timer),
      part_(part),
      start_(std::chrono::steady_clock::now()),
      counted_before_(timer.times_.total()),
      waited_before_(timer.waited_()),
      waiting_before_(timer.times_[StepPart::waiting]) {}

StepTimer::Scope::~Scope() {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  // Scopes inside of this one have counted their time and their waiting already.
  const double counted = timer_.times_.total() - counted_before_;
  const double own = std::max(passed.count() - counted, 0.0);
  const double waiting_counted = timer_.times_[StepPart::waiting] - waiting_before_;
  const double waited = std::clamp(timer_.waited_() - waited_before_ - waiting_counted, 0.0, own);
  timer_.times_[StepPart::waiting] += waited;
  timer_.times_[part_] += own - waited;
}

std::vector<StepTimes> StepTimer::take(const ProcessGroup& group) {
  constexpr std::int64_t columns = step_part_count + 1;
  std::vector<double> mine(times_.seconds.begin(), times_.seconds.end());
  mine.push_back(static_cast<double>(times_.steps));
  std::vector<double> all(static_cast<std::size_t>(group.size() * columns));
  group
      .all_gather(from_blob(mine.data(), {columns}, float64),
                  from_blob(all.data(), {group.size(), columns}, float64), {.name = "step times"})
      .wait();
  times_ = {};
  std::vector<StepTimes> ranks(static_cast<std::size_t>(group.size()));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double* const row = all.data() + r * columns;
    std::copy_n(row, step_part_count, ranks[r].seconds.begin());
    ranks[r].steps = static_cast<std::int64_t>(row[step_part_count]);
  }
  return ranks;
}

// ---- training step

namespace {

// Returns part `index` of `count` parts of a batch, whose sizes differ by at most one. Its
// global_size stays that of the whole batch, by which losses are divided.
data::Batch part_of(const data::Batch& batch, std::int64_t index, std::int64_t count) {
  if (count == 1) return batch;
  const std::int64_t size = batch.images.size(0), begin = size * index / count,
                     end = size * (index + 1) / count;
  data::Batch part{.images = batch.images.slice(0, begin, end),
                   .labels = batch.labels.slice(0, begin, end)};
  if (batch.soft_labels.defined()) part.soft_labels = batch.soft_labels.slice(0, begin, end);
  part.global_size = batch.global_size;
  return part;
}

}  // namespace

void TrainingStep::run(const data::Batch& batch) {
  parts_.optimization.zero_grad();
  const std::int64_t count =
      micro_batches(parts_.options, parts_.data_parallel.group().size(), batch.global_size);
  for (std::int64_t i = 0; i + 1 < count; ++i) {
    const auto no_sync = parts_.data_parallel.no_sync();
    compute_gradients(part_of(batch, i, count));
  }
  compute_gradients(part_of(batch, count - 1, count));
  const StepTimer::Scope scope(parts_.timer, StepPart::optimizer);
  parts_.optimization.update();
}

void TrainingStep::compute_gradients(const data::Batch& batch) {
  const bool is_mixed = batch.soft_labels.defined();
  Tensor logits, loss_sum;
  {
    const trace::Span span("forward");
    const StepTimer::Scope scope(parts_.timer, StepPart::forward);
    logits = parts_.net(batch.images);
    loss_sum = nn::cross_entropy(logits, is_mixed ? batch.soft_labels : batch.labels,
                                 {.reduction = nn::LossReduction::sum,
                                  .label_smoothing = parts_.options.augmentation.label_smoothing});
  }
  {
    const StepTimer::Scope scope(parts_.timer, StepPart::backward);
    // DataParallel averages over the ranks. With this factor the average is the gradient of the
    // mean loss over the global batch.
    parts_.optimization.backward(loss_sum *
                                 (static_cast<double>(parts_.data_parallel.group().size()) /
                                  static_cast<double>(batch.global_size)));
  }
  // Of a mixed image the answer that counts is the class that it shows most of.
  // A loss that is not finite ends the run, so that logits need no look of their own.
  parts_.sums.add(loss_sum, argmax(logits.detach(), 1),
                  is_mixed ? argmax(batch.soft_labels, 1) : batch.labels);
}

}  // namespace tutti::examples
