#include "evaluation.h"

#include "options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/nn/confusion_matrix.h>
#include <tutti/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>

namespace tutti::examples {

Tensor gather_from_ranks(const Tensor& mine, const ProcessGroup& group, const std::string& name) {
  Shape shape = mine.shape();
  shape.insert(0, group.size());
  const Tensor all = empty(shape, {.dtype = mine.dtype()});
  group.all_gather(mine, all, {.name = name}).wait();
  return all;
}

// ---- sums

Tensor predicted_classes(const Tensor& logits) {
  const NoGrad no_grad;
  const Tensor values = logits.detach(), largest = max(values, {1});  // NaN if any is NaN
  return masked_fill(argmax(values, 1), ne(largest - largest, 0.0), -1);
}

void LossSums::add(const Tensor& loss_sum, const Tensor& answers, const Tensor& labels) {
  const NoGrad no_grad;
  MetricSums::add({loss_sum, sum(eq(answers, labels))});
}

LossAndAccuracy LossSums::take(const ProcessGroup& group) {
  const std::vector<double> means = MetricSums::take(group);
  return {.loss = std::isnan(means[0]) ? NAN : means[0], .accuracy = means[1]};  // never -nan
}

// ---- test details

namespace {

using Predictions = std::vector<Prediction>;

bool is_right(const Prediction& p) { return p.label == p.predicted; }

// An order that does not depend on the ranks, and in which neighbours have nothing in common.
std::uint64_t shuffled(const Prediction& p) {
  const std::uint64_t product = static_cast<std::uint64_t>(p.index + 1) * 0x9E3779B97F4A7C15u;
  return product ^ product >> 32;
}

// Returns `most` predictions of one kind: of those that were wrong the most certain ones, of those
// that were right a random choice. Each pair of true and predicted class comes once before any
// comes twice, because otherwise one pair could fill the page.
Predictions choose(const Predictions& from, bool right, std::int64_t most) {
  Predictions sorted, chosen, rest;
  std::ranges::copy_if(from, std::back_inserter(sorted),
                       [&](const Prediction& p) { return is_right(p) == right; });
  std::ranges::sort(sorted, [&](const Prediction& a, const Prediction& b) {
    if (right) return shuffled(a) < shuffled(b);
    return a.probability != b.probability ? a.probability > b.probability : a.index < b.index;
  });
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (const Prediction& p : sorted)
    (seen.emplace(p.label, p.predicted).second ? chosen : rest).push_back(p);
  chosen.insert(chosen.end(), rest.begin(), rest.end());
  chosen.resize(std::min(chosen.size(), static_cast<std::size_t>(most)));
  return chosen;
}

// Returns the predictions of all ranks, of which each gives at most `most`.
Predictions gather(const Predictions& mine, std::int64_t most, const ProcessGroup& group) {
  constexpr std::int64_t columns = 4;
  const Tensor own = full({most, columns}, -1, {.dtype = float64});
  double* to = own.data<double>();
  for (const Prediction& p : mine)
    for (const double value : {static_cast<double>(p.index), static_cast<double>(p.label),
                               static_cast<double>(p.predicted), p.probability})
      *to++ = value;
  const Tensor all = gather_from_ranks(own, group, "predictions");
  Predictions result;
  const double* row = all.data<double>();
  for (std::int64_t i = 0; i < group.size() * most; ++i, row += columns)
    if (row[0] >= 0)
      result.push_back({.index = static_cast<std::int64_t>(row[0]),
                        .label = static_cast<std::int64_t>(row[1]),
                        .predicted = static_cast<std::int64_t>(row[2]),
                        .probability = row[3]});
  return result;
}

// Returns the details that follow from a table of counts, with a row for each class. Its last
// columns are those of the predicted classes, or one column for the samples that were recognised.
TestDetails details_of(const std::int64_t* row, std::int64_t classes, std::int64_t columns) {
  TestDetails details{.classes = classes};
  const bool has_matrix = columns >= classes;
  const std::int64_t others = columns - (has_matrix ? classes : 1);
  for (std::int64_t c = 0; c < classes; ++c, row += columns) {
    details.samples.push_back(std::reduce(row, row + columns));
    details.correct.push_back(row[others + (has_matrix ? c : 0)]);
    if (has_matrix) details.confusion.insert(details.confusion.end(), row + others, row + columns);
  }
  return details;
}

// Adds up the counts of all ranks.
std::vector<std::int64_t> sum_of_ranks(std::vector<std::int64_t> counts,
                                       const ProcessGroup& group) {
  const Tensor values = from_blob(counts.data(), {static_cast<std::int64_t>(counts.size())}, int64);
  group.all_reduce(values, distributed::ReduceOp::sum, {.name = "confusion matrix"}).wait();
  return counts;
}

}  // namespace

TestRecorder::TestRecorder(std::int64_t classes, std::int64_t most_predictions)
    : classes_(classes), most_predictions_(most_predictions) {}

void TestRecorder::add(const Tensor& logits, const Tensor& labels,
                       const std::vector<std::int64_t>& indices) {
  const NoGrad no_grad;
  const Tensor values = logits.detach().to(float64);
  const Tensor answers = empty({3, labels.size(0)}, {.dtype = float64, .device = labels.device()});
  answers.select(0, 0).copy_(labels);
  answers.select(0, 1).copy_(predicted_classes(values));
  answers.select(0, 2).copy_(max(softmax(values, 1), {1}));
  answers_.push_back(answers);
  indices_.insert(indices_.end(), indices.begin(), indices.end());
}

std::vector<Prediction> TestRecorder::read_predictions() {
  Predictions all;
  for (const Tensor& batch : answers_) {
    const Tensor host = batch.to(Device::cpu());
    const std::int64_t n = host.size(1);
    const double* const values = host.data<double>();
    for (std::int64_t i = 0; i < n; ++i)
      all.push_back({.index = indices_[all.size()],
                     .label = static_cast<std::int64_t>(values[i]),
                     .predicted = static_cast<std::int64_t>(values[n + i]),
                     .probability = std::isnan(values[2 * n + i]) ? 0 : values[2 * n + i]});
  }
  answers_.clear();
  indices_.clear();
  return all;
}

TestDetails TestRecorder::take(const ProcessGroup& group) {
  const Predictions mine = read_predictions();
  const bool has_matrix = classes_ <= TestDetails::most_confusion_classes;
  // The first column counts what was taken for no class. Without a matrix there are two columns for
  // each class: not recognised, and recognised.
  const std::int64_t columns = has_matrix ? 1 + classes_ : 2;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(classes_ * columns));
  for (const Prediction& p : mine)
    ++counts[static_cast<std::size_t>(p.label * columns +
                                      (has_matrix ? 1 + p.predicted : is_right(p)))];
  counts = sum_of_ranks(std::move(counts), group);

  TestDetails details = details_of(counts.data(), classes_, columns);
  for (const bool right : {false, true}) {
    const Predictions own = choose(mine, right, most_predictions_);
    (right ? details.right : details.wrong) =
        choose(gather(own, most_predictions_, group), right, most_predictions_);
  }
  return details;
}

// ---- evaluation

LossAndAccuracy evaluate(nn::Layer& net, data::DataLoader& loader, const ProcessGroup& group,
                         Device device, TestRecorder* recorder) {
  const trace::Span span("evaluate");
  const NoGrad no_grad;
  net.eval();
  LossSums sums(device);
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

LossAndAccuracy evaluate_pixels(nn::Layer& net, data::DataLoader& loader, std::int64_t classes,
                                const ProcessGroup& group, Device device, TestDetails* details) {
  const trace::Span span("evaluate");
  constexpr std::int64_t most_shown = 8;
  const std::int64_t between = std::max<std::int64_t>(loader.batches_per_epoch() / most_shown, 1);
  const NoGrad no_grad;
  net.eval();
  LossSums sums(device);
  nn::ConfusionMatrix matrix(classes, no_class);
  std::vector<std::pair<std::int64_t, Tensor>> shown;
  while (const auto batch = loader.next()) {
    sums.count(batch->global_size);
    if (batch->images.size(0) == 0) continue;
    const Tensor logits = net(batch->images.to(device)), masks = batch->labels.to(device),
                 predicted = argmax(logits, 1);
    const Tensor loss = nn::cross_entropy(
        logits, masks, {.reduction = nn::LossReduction::sum, .ignore_index = no_class});
    sums.add(loss / static_cast<double>(masks.numel()), predicted, masks);
    matrix.add(predicted, masks);
    if (batch->number % between == 0 && std::ssize(shown) < most_shown)
      shown.emplace_back(batch->indices[0], predicted.select(0, 0).to(uint8).to(Device::cpu()));
  }
  net.train();
  matrix.all_reduce(group);
  if (details) {
    *details = details_of(matrix.counts().data<std::int64_t>(), classes, classes);
    details->segmented = std::move(shown);
  }
  const double score = matrix.mean_iou();  // NaN where no pixel has a class
  return {.loss = sums.take(group).loss, .accuracy = std::isnan(score) ? 0 : score};
}

}  // namespace tutti::examples
