// LayerNorm as a layer.
#pragma once

#include "module.h"

namespace tutti::nn {

/// layer_norm over the last dimensions of its input, `shape`. Parameters are kept in float32 or
/// float64 whatever the module is moved to.
class LayerNorm : public Layer {
 public:
  struct Options {
    Shape shape;  ///< {8}, or {3, 8}
    double eps = 1e-5;
    bool affine = true;  ///< weight (1 at first) and bias at all
    bool bias = true;    ///< 0 at first
    DType dtype = float32;
    Device device = {};
  };

  /// ShapeError for an empty shape, ValueError for sizes below 1 and a negative or non-finite eps,
  /// DTypeError.
  explicit LayerNorm(Options options);

  Tensor forward(const Tensor& x) override;
  const Options& options() const { return options_; }
  std::string describe() const override;

 private:
  Options options_;

 public:
  Tensor& weight;
  Tensor& bias;

 protected:
  DType own_dtype(const Tensor&, DType requested) const override {
    return requested == float64 ? float64 : float32;
  }
};

}  // namespace tutti::nn
