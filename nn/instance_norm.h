// Instance normalisation as a layer (Ulyanov, Vedaldi and Lempitsky, "Instance normalization: the
// missing ingredient for fast stylization", 2016). It is batch normalisation of each sample on its
// own; nn::batch_norm computes it.
#pragma once

#include "batch_norm/functional.h"
#include "module.h"

namespace tutti::nn {

/// The options of InstanceNorm.
struct InstanceNormOptions {
  std::int64_t channels = 0;
  double eps = 1e-5;
  double momentum = 0.1;  ///< the weight of a new batch in the running statistics, in [0, 1]
  /// Whether the layer has a weight, which starts at 1, and a bias, which starts at 0.
  bool affine = false;
  bool track_running_stats = false;
  DType dtype = float32;  ///< the dtype of parameters and buffers, float32 or float64
  Device device = {};
};

/// A layer that normalises each channel of each sample of x (N, channels, ...) over all positions,
/// with PyTorch's options and defaults: no parameters and no running statistics. With
/// `track_running_stats`, training moves running_mean and running_var towards the averages over the
/// samples of mean and unbiased variance, and evaluation normalises by them. num_batches_tracked
/// never counts, as in PyTorch. The output has the memory format of x; a channels_last x and its
/// gradient are copied to row-major memory and back, unless running statistics are used. ShapeError
/// if a channel of a sample has only one value and running statistics are not used.
class InstanceNorm : public LayerWith<InstanceNormOptions> {
 public:
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 protected:
  /// ValueError for fewer than one channel, a negative or non-finite eps, or a momentum outside
  /// [0, 1]; DTypeError for another dtype.
  InstanceNorm(InputDims input_dims, const Options& options);

  DType own_dtype(const Tensor&, DType requested) const override {
    return requested == float64 ? float64 : float32;
  }

 private:
  Tensor normalize_instances(const Tensor& x);

  InputDims input_dims_;

 public:
  const Tensor& weight;  ///< (channels); undefined, like the bias, if not affine
  const Tensor& bias;
  const Tensor& running_mean;  ///< (channels); undefined, like the following, if not tracked
  const Tensor& running_var;
  const Tensor& num_batches_tracked;  ///< int64, (), never changed: for state dicts of PyTorch
};

/// Takes (N, C, L).
class InstanceNorm1d : public InstanceNorm {
 public:
  explicit InstanceNorm1d(const Options& options) : InstanceNorm({3, 3, "(N, C, L)"}, options) {}
};

/// Takes (N, C, H, W).
class InstanceNorm2d : public InstanceNorm {
 public:
  explicit InstanceNorm2d(const Options& options) : InstanceNorm({4, 4, "(N, C, H, W)"}, options) {}
};

/// Takes (N, C, D, H, W).
class InstanceNorm3d : public InstanceNorm {
 public:
  explicit InstanceNorm3d(const Options& options)
      : InstanceNorm({5, 5, "(N, C, D, H, W)"}, options) {}
};

}  // namespace tutti::nn
