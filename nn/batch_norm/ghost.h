// Ghost batches: batch normalisation over parts of a rank's batch (Hoffer, Hubara and Soudry,
// "Train longer, generalize better", 2017). A large batch then has the noise of statistics that a
// small one has, which generalises better.
#pragma once

#include "layer.h"

namespace tutti::nn {

/// Runs a batch norm, its child "norm", in training on the parts of `size` samples of a batch, one
/// after the other, and joins the outputs. The last part may be smaller. The running statistics
/// move once for each part. Evaluation takes no parts.
class GhostBatchNorm : public Layer {
 public:
  /// Throws ValueError for a size below 1.
  GhostBatchNorm(std::shared_ptr<BatchNorm> layer, std::int64_t size);

  /// Throws ValueError if the layer has a group of ranks, which share statistics of whole batches;
  /// ShapeError, before anything has changed, if the last part would have one value per channel.
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  BatchNorm& norm;

 private:
  std::int64_t size_;
};

}  // namespace tutti::nn
