#include "mixup.h"

#include "../../core/create.h"
#include "checks.h"

#include <algorithm>
#include <cmath>

namespace tutti::data {
namespace {

void check_alpha(double alpha, const char* op) {
  if (!(alpha > 0 && std::isfinite(alpha)))
    fail<ValueError>("{}: expected a positive alpha, got {}", op, alpha);
}

// Returns whether row i takes the elements from i numel / n on.
bool has_dense_rows(const Tensor& tensor) {
  const std::int64_t n = tensor.size(0);
  return tensor.is_dense() && (n < 2 || tensor.strides()[0] == tensor.numel() / n);
}

void check_batch(const Batch& batch, std::size_t parameters, const char* op) {
  if (!batch.soft_labels.defined())
    fail<ValueError>("{}: the batch has no soft labels; put SoftLabels before it", op);
  if (batch.images.dtype() != float32)
    fail<DTypeError>("{}: expected float32 images, got {}; let the transforms end with Normalize",
                     op, to_string(batch.images.dtype()));
  const auto n = static_cast<std::int64_t>(parameters);
  if (batch.images.rank() != 4 || batch.images.size(0) != n || !has_dense_rows(batch.images))
    fail<ShapeError>(
        "{}: expected images ({}, channels, height, width), each of them dense and one after the "
        "other, got shape {}",
        op, parameters, to_string(batch.images.shape()));
  const Tensor& labels = batch.soft_labels;
  if (labels.dtype() != float32 || labels.rank() != 2 || labels.size(0) != n ||
      !labels.is_contiguous())
    fail<ShapeError>("{}: expected soft labels ({}, classes) in float32, got {} {}", op, parameters,
                     to_string(labels.dtype()), to_string(labels.shape()));
}

// Sets row i to weights[i] times itself and 1 - weights[i] times the row before it.
void mix_rows(const Tensor& tensor, const std::vector<double>& weights) {
  const Tensor old = tensor.clone();
  const std::int64_t rows = tensor.size(0),
                     count = tensor.numel() / std::max<std::int64_t>(rows, 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto weight = static_cast<float>(weights[static_cast<std::size_t>(i)]);
    const float* const before = old.data<float>() + (i + rows - 1) % rows * count;
    float* const row = tensor.data<float>() + i * count;
    for (std::int64_t k = 0; k < count; ++k) row[k] = weight * row[k] + (1 - weight) * before[k];
  }
}

// Draws the rectangle that is pasted into an image: its centre is uniform, and what reaches outside
// of the image is cut off.
Box draw_cut(double alpha, std::int64_t height, std::int64_t width, Generator& random) {
  const double half = 0.5 * std::sqrt(1 - draw_beta(alpha, random));
  const auto draw_range = [&](std::int64_t length, std::int64_t& begin) {
    const std::int64_t center = random.below(length);
    const auto reach = static_cast<std::int64_t>(half * static_cast<double>(length));
    begin = std::max<std::int64_t>(0, center - reach);
    return std::min(length, center + reach) - begin;
  };
  Box box;
  box.width = draw_range(width, box.left);
  box.height = draw_range(height, box.top);
  return box;
}

// Returns the logarithm of a number of the distribution Gamma(alpha, 1) (Marsaglia and Tsang, "A
// simple method for generating gamma variables", 2000). Small alphas give numbers that only their
// logarithm can hold.
double draw_log_gamma(double alpha, Generator& random) {
  if (alpha < 1) {
    const double power = std::log1p(-random.uniform()) / alpha;
    return draw_log_gamma(alpha + 1, random) + power;
  }
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal(), v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log1p(-random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return std::log(d) + std::log(v);
  }
}

}  // namespace

double draw_beta(double alpha, Generator& random) {
  check_alpha(alpha, "draw_beta");
  const double x = draw_log_gamma(alpha, random), y = draw_log_gamma(alpha, random);
  return 1 / (1 + std::exp(y - x));
}

Tensor soft_labels(const Tensor& labels, std::int64_t classes, double smoothing) {
  check_probability(smoothing, "soft_labels");
  const std::int64_t n = labels.size(0);
  const std::int64_t* const label = labels.data<std::int64_t>();
  const Tensor result = full({n, classes}, smoothing / static_cast<double>(classes));
  for (std::int64_t i = 0; i < n; ++i) {
    if (label[i] < 0 || label[i] >= classes)
      fail<ValueError>("soft_labels: expected labels from 0 to {}, got {}", classes - 1, label[i]);
    result.data<float>()[i * classes + label[i]] += static_cast<float>(1 - smoothing);
  }
  return result;
}

void mix(Batch& batch, const std::vector<double>& weights) {
  check_batch(batch, weights.size(), "mix");
  mix_rows(batch.images, weights);
  mix_rows(batch.soft_labels, weights);
}

void cut_and_mix(Batch& batch, const std::vector<Box>& boxes) {
  check_batch(batch, boxes.size(), "cut_and_mix");
  const Tensor old = batch.images.clone();
  const Shape& shape = batch.images.shape();
  const Strides& strides = batch.images.strides();
  std::vector<double> weights;
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    const Box& box = boxes[static_cast<std::size_t>(i)];
    check_box(box, shape[2], shape[3], "cut_and_mix");
    weights.push_back(1 - static_cast<double>(box.height * box.width) /
                              static_cast<double>(shape[2] * shape[3]));
    const float* const from = old.data<float>() + (i + shape[0] - 1) % shape[0] * strides[0];
    float* const to = batch.images.data<float>() + i * strides[0];
    for (std::int64_t c = 0; c < shape[1]; ++c)
      for (std::int64_t y = box.top; y < box.top + box.height; ++y)
        for (std::int64_t x = box.left; x < box.left + box.width; ++x) {
          const std::int64_t at = c * strides[1] + y * strides[2] + x * strides[3];
          to[at] = from[at];
        }
  }
  mix_rows(batch.soft_labels, weights);
}

SoftLabels::SoftLabels(Options options) : options_(options) {
  if (options.classes < 1)
    fail<ValueError>("SoftLabels: expected at least 1 class, got {}", options.classes);
  check_probability(options.smoothing, "SoftLabels");
}

void SoftLabels::operator()(Batch& batch, std::span<Generator>) const {
  batch.soft_labels = soft_labels(batch.labels, options_.classes, options_.smoothing);
}

MixUp::MixUp(double alpha) : alpha_(alpha) { check_alpha(alpha, "MixUp"); }

void MixUp::operator()(Batch& batch, std::span<Generator> randoms) const {
  std::vector<double> weights;
  for (Generator& random : randoms) weights.push_back(draw_beta(alpha_, random));
  mix(batch, weights);
}

CutMix::CutMix(double alpha) : alpha_(alpha) { check_alpha(alpha, "CutMix"); }

void CutMix::operator()(Batch& batch, std::span<Generator> randoms) const {
  check_batch(batch, randoms.size(), "CutMix");
  std::vector<Box> boxes;
  for (Generator& random : randoms)
    boxes.push_back(draw_cut(alpha_, batch.images.size(2), batch.images.size(3), random));
  cut_and_mix(batch, boxes);
}

}  // namespace tutti::data
