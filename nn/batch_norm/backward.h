// The backward of batch norm, and its steps. batch_norm_backward (backward.cpp) takes them for one
// layer, JointBatchNorm (joint.cpp) for several layers that share one collective.
#pragma once

#include "../../autograd/record.h"
#include "forward.h"

namespace tutti::nn {

/// The state that a forward saves for its backward.
struct BackwardContext {
  autograd::Saved x, weight, bias, position_weights;
  /// The output, from which the backward reads where the ReLU after a residual passed values. Empty
  /// if `mask` is defined or there is no such ReLU.
  autograd::Saved y;
  Tensor mask;  ///< one bit per element with the same information, on devices that store it
  Statistics statistics;
  kernels::Epsilon eps;
  bool relu = false, has_residual = false;
  NeededGradients needed;
  CallId id;                 ///< the call that computed the statistics
  bool all_reduces = false;  ///< whether the backward adds its sums over the ranks of id.group
  std::shared_ptr<CallHistory> history;

  BackwardContext(const Call& call, const Output& output);
  /// Returns whether one kernel can compute all gradients: x needs one, and the batch is that of
  /// this rank alone.
  bool fits_one_kernel() const;
};

/// The results of the first half of the backward, which needs no other rank.
struct LocalGradients {
  Tensor dy;               ///< the gradient of the output, dense
  bool is_masked = false;  ///< whether dy has been set to 0 where the ReLU passed nothing
  /// Whether nothing else holds dy, so that the gradient of x may replace it.
  bool can_overwrite_dy = false;
  Tensor sums;  ///< the packet of this rank's gradient sums; undefined if not needed
  Tensor weight, bias, residual;  ///< gradients; undefined if not needed
};

/// Maps the gradient of the output to the gradients of x, weight, bias and residual; undefined
/// where none is needed. Collective if `context.all_reduces`.
std::vector<Tensor> batch_norm_backward(const BackwardContext& context, const Tensor& dy);

/// Computes this rank's sums and the gradients that need no other rank.
LocalGradients local_gradients(const BackwardContext& context, const Tensor& dy);

/// Computes the gradient of x from the sums over all ranks; undefined if it is not needed.
Tensor input_gradient(const BackwardContext& context, const LocalGradients& local);

}  // namespace tutti::nn
