// The backward of batch norm, and its steps. batch_norm_backward (backward.cpp) takes them for one
// layer, JointBatchNorm (joint.cpp) for several layers that share one collective.
#pragma once

#include "../../autograd/record.h"
#include "forward.h"

namespace tutti::nn {

/// What the backward of a call keeps of its forward.
struct BackwardContext {
  autograd::Saved x, weight, bias, position_weights;
  autograd::Saved y;  ///< only if it tells where the ReLU after a residual let values pass
  Tensor mask;        ///< tells the same, on a device that stores it
  Statistics statistics;
  kernels::Epsilon eps;
  bool relu = false, has_residual = false;
  NeededGradients needed;
  CallId id;                 ///< of the call that has computed the statistics
  bool all_reduces = false;  ///< the backward exchanges sums with the ranks of id.group
  std::shared_ptr<CallHistory> history;

  BackwardContext(const Call& call, const Output& output);
  /// Whether the gradient of x follows from the batch of this rank alone.
  bool fits_one_kernel() const;
};

/// What the backward computes before ranks exchange anything.
struct LocalGradients {
  Tensor dy;                      ///< the gradient of the output, dense
  bool is_masked = false;         ///< dy is 0 where the ReLU let nothing pass
  bool can_overwrite_dy = false;  ///< nobody else holds dy: the gradient of x may replace it
  Tensor sums;                    ///< the packet of this rank; undefined if nothing needs it
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
