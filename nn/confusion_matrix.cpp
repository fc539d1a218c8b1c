#include "confusion_matrix.h"

#include "../core/create.h"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>

namespace tutti::nn {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

double quotient(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : nothing;
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::int64_t classes, std::int64_t ignore_index)
    : classes_(classes), ignore_index_(ignore_index) {
  if (classes < 1) fail<ValueError>("ConfusionMatrix: expected at least 1 class, got {}", classes);
  table_ = zeros({classes, 1 + classes}, {.dtype = int64});
}

void ConfusionMatrix::add(const Tensor& predictions, const Tensor& targets) {
  if (!(predictions.shape() == targets.shape()))
    fail<ShapeError>("ConfusionMatrix: expected predictions of the targets' shape {}, got {}",
                     to_string(targets.shape()), to_string(predictions.shape()));
  if (predictions.dtype() != int64 || targets.dtype() != int64)
    fail<DTypeError>(
        "ConfusionMatrix: expected int64 classes, got {} and {}; use argmax(logits, 1)",
        to_string(predictions.dtype()), to_string(targets.dtype()));
  const Tensor own_predictions = predictions.to(Device::cpu()).contiguous(),
               own_targets = targets.to(Device::cpu()).contiguous();
  const std::int64_t* predicted = own_predictions.data<std::int64_t>();
  const std::int64_t* target = own_targets.data<std::int64_t>();
  const Tensor sums = table_.clone();
  std::int64_t* const to = sums.data<std::int64_t>();
  for (std::int64_t i = 0; i < own_targets.numel(); ++i) {
    if (target[i] == ignore_index_) continue;
    if (target[i] < 0 || target[i] >= classes_ || predicted[i] < -1 || predicted[i] >= classes_)
      fail<ValueError>(
          "ConfusionMatrix: expected classes from 0 to {} (or ignore_index {} as a target), got "
          "target {} and prediction {}",
          classes_ - 1, ignore_index_, target[i], predicted[i]);
    ++to[target[i] * (1 + classes_) + 1 + predicted[i]];
  }
  table_ = sums;
}

void ConfusionMatrix::all_reduce(const ProcessGroup& group) {
  group.all_reduce(table_, distributed::ReduceOp::sum, {.name = "confusion matrix"}).wait();
}

std::vector<double> ConfusionMatrix::iou() const {
  const std::int64_t columns = 1 + classes_;
  const std::int64_t* const count = table_.data<std::int64_t>();
  std::vector<double> result;
  for (std::int64_t c = 0; c < classes_; ++c) {
    const std::int64_t both = count[c * columns + 1 + c];
    std::int64_t either = count[c * columns] - both;
    for (std::int64_t other = 0; other < classes_; ++other)
      either += count[c * columns + 1 + other] + count[other * columns + 1 + c];
    result.push_back(quotient(both, either));
  }
  return result;
}

double ConfusionMatrix::mean_iou() const {
  double sum = 0;
  std::int64_t present = 0;
  for (const double value : iou())
    if (!std::isnan(value)) sum += value, ++present;
  return present > 0 ? sum / static_cast<double>(present) : nothing;
}

double ConfusionMatrix::pixel_accuracy() const {
  std::int64_t right = 0, all = 0;
  for (std::int64_t i = 0; i < table_.numel(); ++i) {
    const std::int64_t count = table_.data<std::int64_t>()[i];
    all += count;
    if (i % (1 + classes_) == 1 + i / (1 + classes_)) right += count;
  }
  return quotient(right, all);
}

std::string ConfusionMatrix::summary(const std::vector<std::string>& class_names) const {
  std::vector<std::string> absent;
  const std::vector<double> values = iou();
  for (std::size_t c = 0; c < values.size(); ++c)
    if (std::isnan(values[c]))
      absent.push_back(c < class_names.size() ? class_names[c] : std::to_string(c));
  return fmt::format("mIoU {:.4f} of {} classes, pixel accuracy {:.4f}{}{}", mean_iou(),
                     values.size() - absent.size(), pixel_accuracy(),
                     absent.empty() ? "" : "; absent: ", fmt::join(absent, ", "));
}

}  // namespace tutti::nn
