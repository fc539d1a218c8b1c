// The references that several operations share: plain loops over Numbers.
#pragma once

#include "array.h"

#include <tutti/core/random.h>
#include <tutti/kernels/options.h>

namespace tutti::test::reference {

/// max(x, 0). The gradient passes where x is above 0, and where it is NaN.
Array relu(const Array& x);
/// exp(x) / sum(exp(x)) along `dim`, or its logarithm.
Array softmax(const Array& x, std::int64_t dim, bool log);
/// a (..., m, k) times b (..., k, n), where batch dimensions broadcast; a vector is a row or
/// column.
Array matmul(const Array& a, const Array& b);
/// x (..., in) times the transpose of w (out, in), plus bias unless it is empty.
Array linear(const Array& x, const Array& w, const Array& bias);
/// The rows of `table` that `indices` name; no gradient flows to row `padding`.

/// The cross-correlation of x with w, plus bias unless it is empty. The options have one number for
/// each spatial dimension.
Array convolution(const Array& x, const Array& w, const Array& bias,
                  const kernels::ConvOptions& options);

/// The transposed convolution of x, plus bias unless it is empty; `output` has its spatial sizes.
Array conv_transpose(const Array& x, const Array& w, const Array& bias,
                     const kernels::ConvOptions& options, const Dims& output);

/// The options of pooling, with one number for each spatial dimension.
Array max_pool(const Array& x, const kernels::PoolOptions& options);
Array avg_pool(const Array& x, const kernels::PoolOptions& options);
Array adaptive_avg_pool(const Array& x, const Dims& output);

/// Interpolation: a hat around each output's position, which is clamped to the input. `scales` has,
/// for each spatial dimension, how far the positions of neighbouring outputs are apart.
struct Interpolation {
  Dims output;
  std::vector<Real> scales;
  bool linear = false, align_corners = false;
};
Array interpolate(const Array& x, const Interpolation& arguments);

/// The arguments of batch normalisation. Arrays without values are undefined.
struct BatchNorm {
  Array weight = {}, bias = {};
  Array running_mean = {}, running_var = {};  ///< if defined, x is normalised by them
  Array residual = {};
  Array position_weights = {};  ///< (N) or (N, ...)
  double eps = 1e-5;
  bool eps_is_floor = false, relu = false;
};
Array batch_norm(const Array& x, const BatchNorm& arguments);
/// Returns x (N, C, ...) normalised over each sample and group of channels.
Array group_norm(const Array& x, std::int64_t groups, const Array& weight, const Array& bias,
                 double eps);
/// Layer normalisation over the last `dims` dimensions.
Array layer_norm(const Array& x, int dims, const Array& weight, const Array& bias, double eps);

/// Keeps the elements for which `is_kept` is set, times `factor`.
Array dropout(const Array& x, const std::vector<bool>& is_kept, double factor);

enum class Total { mean, sum, none };
/// Returns the losses, their sum, or the sum over `count`.
Array total(const Array& losses, Total total, double count);
/// The arguments of cross_entropy().
struct CrossEntropy {
  Total reduction = Total::mean;
  std::int64_t ignored = -100;
  double smoothing = 0;
  std::vector<Real> weight = {};  ///< one for each class, or none
};
/// The targets are class indices, or class probabilities if they have the shape of the logits.
Array cross_entropy(const Array& logits, const Array& targets, const CrossEntropy& arguments);
Array mse(const Array& input, const Array& target, Total reduction);
/// The binary cross-entropy of logits; an empty `pos_weight` is undefined.
Array binary_cross_entropy_with_logits(const Array& logits, const Array& target,
                                       const Array& pos_weight, Total reduction);

}  // namespace tutti::test::reference
