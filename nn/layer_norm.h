// Layer normalisation as a layer.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The options of LayerNorm.
struct LayerNormOptions {
  /// The dimensions to normalise over, such as {8} or {3, 8}.
  Shape shape;
  double eps = 1e-5;
  /// Whether the layer has a weight, which starts at 1, and may have a bias.
  bool affine = true;
  /// Whether the layer has a bias, which starts at 0.
  bool bias = true;
  DType dtype = float32;
  Device device = {};
};

/// A layer that normalises over the last dimensions of its input, which must be `shape`
/// (nn::layer_norm). Its parameters stay in float32 or float64 when the module is moved to a 16-bit
/// dtype.
class LayerNorm : public LayerWith<LayerNormOptions> {
 public:
  /// ShapeError for an empty shape, ValueError for sizes below 1 and a negative or non-finite eps,
  /// DTypeError for a dtype other than float32 and float64.
  explicit LayerNorm(Options options);

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  /// Weight and bias have the shape `shape`, or are undefined if the layer has none.
  const Tensor& weight;
  const Tensor& bias;

 protected:
  DType own_dtype(const Tensor&, DType requested) const override {
    return requested == float64 ? float64 : float32;
  }
};

}  // namespace tutti::nn
