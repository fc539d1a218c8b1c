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
/// same group. A backward() runs one collective for all of the layers that it visits, so it must
/// visit the same layers on every rank.
class JointBatchNorm {
 public:
  JointBatchNorm();
  ~JointBatchNorm();
  JointBatchNorm(JointBatchNorm&&) noexcept;
  JointBatchNorm& operator=(JointBatchNorm&&) noexcept;

  /// Checks the arguments, computes this rank's sums of x, and returns the number to pass to
  /// finish(). Throws the errors of batch_norm, a ValueError if two layers have different groups,
  /// and an Error after the first finish().
  std::size_t start(BatchNorm& layer, const Tensor& x,
                    const BatchNorm::ForwardOptions& options = {});

  /// Returns the output of the layer whose start() returned `number`, and runs the layer's hooks.
  /// The first call of finish() all-reduces the sums of all layers. Each call updates the running
  /// statistics of its layer; a call that throws because of its residual or of x updates those of
  /// all layers. If the caller stops between two calls, the layers that are not finished keep their
  /// running statistics on this rank only.
  ///
  /// `residual` replaces the residual of the options; it may be the output of another of the
  /// layers. If it does not fit, only this rank throws. The exchange has happened by then, so the
  /// running statistics have changed and the call counts. Headers are sent before this residual is
  /// known: a rank on which nothing else needs a gradient tells the others that it runs no
  /// backward.
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
