#include "evaluation.h"

#include "options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/error.h>
#include <tutti/core/trace.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/confusion_matrix.h>
#include <tutti/nn/functional/loss.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

namespace tutti::examples {

const Metrics* best_row(const std::vector<Metrics>& rows) {
  const Metrics* best = nullptr;
  for (const Metrics& row : rows)
    if (row.test_accuracy && std::isfinite(row.test_loss.value_or(0)) &&
        (!best || *row.test_accuracy > *best->test_accuracy))
      best = &row;
  return best;
}

Metrics epoch_means(const std::vector<Metrics>& rows) {
  Metrics means = rows.back();
  means.train_loss = means.train_accuracy = 0;
  double steps = 0, waiting = 0, timed_steps = 0, time = 0, speed = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Metrics& row = rows[i];
    if (row.epoch != means.epoch) continue;
    const auto weight = static_cast<double>(row.step - (i > 0 ? rows[i - 1].step : 0));
    steps += weight;
    // Means that move cannot overflow, as sums of large losses can.
    means.train_loss += weight / steps * (row.train_loss - means.train_loss);
    means.train_accuracy += weight / steps * (row.train_accuracy - means.train_accuracy);
    if (!(row.images_per_second > 0)) continue;     // the row's steps were another process's
    if (speed == 0) speed = row.images_per_second;  // a step's time at this speed is the unit
    const double row_time = weight * (speed / row.images_per_second);
    timed_steps += weight;
    time += row_time;
    waiting += row_time * row.data_waiting;
  }
  means.images_per_second = timed_steps > 0 ? timed_steps / time * speed : 0;
  means.data_waiting = timed_steps > 0 ? waiting / time : 0;
  return means;
}

bool is_tested(const std::vector<Metrics>& rows, std::int64_t step) {
  return !rows.empty() && rows.back().step == step && rows.back().test_accuracy;
}

bool is_out_of_patience(const std::vector<Metrics>& rows, std::int64_t patience) {
  if (patience == 0 || rows.empty() || !rows.back().test_accuracy) return false;
  const Metrics* const best = best_row(rows);
  const std::int64_t best_step = best ? best->step : 0;
  return std::ranges::count_if(rows, [&](const Metrics& row) {
           return row.step > best_step && row.test_accuracy;
         }) >= patience;
}

// ---- straggler summary

namespace {

using Report = distributed::StragglerMonitor::Report;

template <class Number>
void add(std::vector<Number>& sums, const std::vector<Number>& values) {
  sums.resize(values.size());
  for (std::size_t r = 0; r < values.size(); ++r) sums[r] += values[r];
}

Report sum_of(const std::vector<Metrics>& rows) {
  Report sum;
  for (const Metrics& row : rows) {
    if (!row.stragglers) continue;
    sum.collectives += row.stragglers->collectives;
    add(sum.waited_seconds, row.stragglers->waited_seconds);
    add(sum.held_up_seconds, row.stragglers->held_up_seconds);
    add(sum.came_last, row.stragglers->came_last);
  }
  return sum;
}

}  // namespace

std::string straggler_summary(const std::vector<Metrics>& rows) {
  const Report sum = sum_of(rows);
  if (sum.waited_seconds.empty()) return {};
  const auto rank = static_cast<std::size_t>(sum.straggler());
  const auto [least, most] =
      std::minmax_element(sum.waited_seconds.begin(), sum.waited_seconds.end());
  return fmt::format(
      "the others waited longest for rank {}: {:.2f} s, and it came last to {} of {} collectives; "
      "ranks waited {:.2f} to {:.2f} s in all",
      rank, sum.held_up_seconds[rank], sum.came_last[rank], sum.collectives, *least, *most);
}

Tensor gather_from_ranks(const Tensor& mine, const ProcessGroup& group, const std::string& name) {
  Shape shape = mine.shape();
  shape.insert(0, group.size());
  const Tensor all = empty(shape, {.dtype = mine.dtype()});
  group.all_gather(mine, all, {.name = name}).wait();
  return all;
}

// ---- metrics table

namespace {

constexpr double largest = std::numeric_limits<double>::max(),
                 infinity = std::numeric_limits<double>::infinity();

// The values that a column may have.
struct Column {
  const char* name;
  double low, high;
  bool is_whole = false, may_be_nan = false;
};
constexpr std::array<Column, metrics_columns> column_checks{
    {{.name = "epoch", .low = 1, .high = 0x1p53, .is_whole = true},
     {.name = "step", .low = 1, .high = 0x1p53, .is_whole = true},
     {.name = "train_loss", .low = -largest, .high = largest},
     {.name = "train_accuracy", .low = 0, .high = 1},
     {.name = "images_per_second", .low = 0, .high = infinity},
     {.name = "learning_rate", .low = 0, .high = largest},
     {.name = "test_loss", .low = -infinity, .high = infinity, .may_be_nan = true},
     {.name = "test_accuracy", .low = 0, .high = 1, .may_be_nan = true},
     {.name = "data_waiting", .low = 0, .high = 1}}};

void check_value(std::int64_t row, const Column& column, double value) {
  const bool is_legal = std::isnan(value) ? column.may_be_nan
                                          : value >= column.low && value <= column.high &&
                                                (!column.is_whole || value == std::floor(value));
  if (!is_legal)
    fail<CheckpointError>("tensor 'rows': row {}: {} is {}, expected a {}number of {} to {}", row,
                          column.name, value, column.is_whole ? "whole " : "", column.low,
                          column.high);
}

Metrics row_from(const double* values) {
  const auto known = [](double value) {
    return std::isnan(value) ? std::optional<double>() : value;
  };
  return {.epoch = static_cast<std::int64_t>(values[0]),
          .step = static_cast<std::int64_t>(values[1]),
          .train_loss = values[2],
          .train_accuracy = values[3],
          .images_per_second = values[4],
          .learning_rate = values[5],
          .data_waiting = values[8],
          .test_loss = known(values[6]),
          .test_accuracy = known(values[7])};
}

}  // namespace

Tensor to_table(const std::vector<Metrics>& rows) {
  const Tensor table =
      empty({static_cast<std::int64_t>(rows.size()), metrics_columns}, {.dtype = float64});
  double* at = table.data<double>();
  for (const Metrics& m : rows)
    for (const double value :
         {static_cast<double>(m.epoch), static_cast<double>(m.step), m.train_loss, m.train_accuracy,
          m.images_per_second, m.learning_rate, m.test_loss.value_or(NAN),
          m.test_accuracy.value_or(NAN), m.data_waiting})
      *at++ = value;
  return table;
}

std::vector<Metrics> rows_from_table(const Tensor& table, std::int64_t step) {
  std::vector<Metrics> rows;
  for (std::int64_t r = 0; r < table.size(0); ++r) {
    const double* const values = table.data<double>() + r * metrics_columns;
    for (std::size_t c = 0; c < column_checks.size(); ++c)
      check_value(r, column_checks[c], values[c]);
    const Metrics row = row_from(values);
    const Metrics before = rows.empty() ? Metrics{.epoch = 1} : rows.back();
    if (row.step <= before.step || row.step > step || row.epoch < before.epoch)
      fail<CheckpointError>(
          "tensor 'rows': row {} is of step {} in epoch {}, after step {} in epoch {}, in a "
          "checkpoint of step {}",
          r, row.step, row.epoch, before.step, before.epoch, step);
    rows.push_back(row);
  }
  return rows;
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

  TestDetails details{.classes = classes_};
  for (std::int64_t c = 0; c < classes_; ++c) {
    const auto* const row = counts.data() + c * columns;
    details.samples.push_back(std::reduce(row, row + columns));
    details.correct.push_back(row[has_matrix ? 1 + c : 1]);
    if (has_matrix) details.confusion.insert(details.confusion.end(), row + 1, row + columns);
  }
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

namespace {

TestDetails details_of(const Tensor& counts) {
  TestDetails details{.classes = counts.size(0)};
  const auto* const first = counts.data<std::int64_t>();
  details.confusion.assign(first, first + counts.numel());
  for (std::int64_t c = 0; c < details.classes; ++c) {
    details.samples.push_back(
        std::reduce(first + c * details.classes, first + (c + 1) * details.classes));
    details.correct.push_back(details.count(c, c));
  }
  return details;
}

}  // namespace

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
    *details = details_of(matrix.counts());
    details->segmented = std::move(shown);
  }
  const double score = matrix.mean_iou();  // NaN where no pixel has a class
  return {.loss = sums.take(group).loss, .accuracy = std::isnan(score) ? 0 : score};
}

// ---- batch norm check

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
