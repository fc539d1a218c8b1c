// Group normalisation as a layer. nn::group_norm computes it; convert_batchnorm_to_groupnorm()
// (batch_norm/convert.h) makes BatchNorm layers of a model compute the same.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The options of GroupNorm.
struct GroupNormOptions {
  std::int64_t groups = 0;  ///< divides the channels
  std::int64_t channels = 0;
  double eps = 1e-5;
  /// Whether the layer has a weight, which starts at 1, and a bias, which starts at 0.
  bool affine = true;
  DType dtype = float32;  ///< the dtype of the parameters, float32 or float64
  Device device = {};
};

/// A layer that normalises each sample of x (N, channels, ...) over each group of neighbouring
/// channels and all positions (nn::group_norm). It knows no batch: training and evaluation are the
/// same, and ranks have nothing to share. Its parameters stay in float32 or float64 when the module
/// is moved to a 16-bit dtype.
class GroupNorm : public LayerWith<GroupNormOptions> {
 public:
  /// ValueError for groups that do not divide the channels, for fewer than one channel, and for a
  /// negative or non-finite eps; DTypeError for another dtype.
  explicit GroupNorm(const Options& options);

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  const Tensor& weight;  ///< (channels); undefined, like the bias, if not affine
  const Tensor& bias;

 protected:
  DType own_dtype(const Tensor&, DType requested) const override {
    return requested == float64 ? float64 : float32;
  }
};

}  // namespace tutti::nn
