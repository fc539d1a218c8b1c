// JointBatchNorm runs several batch-norm layers in one collective, forward and backward. It
// arranges the steps of forward.h and backward.h for several layers and computes nothing itself.
#pragma once

#include "layer.h"

#include <memory>
#include <vector>

namespace tutti::nn {

/// Several layers that share one all-reduce in the forward and one in the backward: parallel
/// branches, such as the main path and the shortcut of a residual block.
///
///   JointBatchNorm joint;
///   const auto shortcut = joint.start(shortcut_bn, shortcut_conv(x));
///   const auto main = joint.start(bn, conv(h), {.relu = true});
///   return joint.finish(main, joint.finish(shortcut));  // relu(bn(.) + shortcut)
///
/// Layers without a group, and layers in evaluation, may be among them. All others must have the
/// same group. One backward() makes one collective for all layers that it comes to, so every rank
/// must go through the same layers.
class JointBatchNorm {
 public:
  JointBatchNorm();
  ~JointBatchNorm();
  JointBatchNorm(JointBatchNorm&&) noexcept;
  JointBatchNorm& operator=(JointBatchNorm&&) noexcept;

  /// Checks the arguments, computes this rank's sums of x, and returns the number by which
  /// finish() knows this layer. Throws what batch_norm throws, ValueError if two layers have
  /// different groups, and Error after the first finish().
  std::size_t start(BatchNorm& layer, const Tensor& x,
                    const BatchNorm::ForwardOptions& options = {});

  /// Returns the output of the layer that was started by this number, and runs its hooks. The first
  /// call exchanges the sums of all layers and moves all running statistics.
  ///
  /// `residual` replaces that of the options, for a residual that is an output of another layer. If
  /// it does not fit, only this rank throws, after the exchange: the running statistics have moved,
  /// and the call counts. A rank on which nothing but this residual needs a gradient announces that
  /// it runs no backward.
  ///
  /// Throws Error if a layer is finished twice, if x was changed in place since start(), or after a
  /// failed exchange.
  Tensor finish(std::size_t number, const Tensor& residual = {});

 private:
  struct Started;

  void exchange();
  void all_reduce();

  std::vector<Started> started_;
  bool is_exchanged_ = false, has_failed_ = false;
};

}  // namespace tutti::nn
