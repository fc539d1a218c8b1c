// batch_norm() is batch normalisation as a differentiable function. nn::BatchNorm and
// nn::SyncBatchNorm own the parameters and the running statistics, choose the arguments and call
// it. forward.cpp and backward.cpp hold the two halves of the computation.
#pragma once

#include "../../distributed/process_group.h"
#include "../../kernels/batch_norm.h"

#include <optional>
#include <string>

namespace tutti::nn {

/// The range of an input's number of dimensions, and the text by which errors name such a shape.
struct InputDims {
  int min = 2, max = Dims::max_rank;
  const char* shape = "(N, C, ...)";
};

/// The options of one forward. Its kernels apply them in the same pass over memory, and so do
/// those of its backward.
struct BatchNormForwardOptions {
  /// A tensor like x (shape, dtype, device), which is added to the output before the ReLU;
  /// undefined for none.
  Tensor residual = {};
  bool relu = false;  ///< applies max(., 0) to the output
  /// The weights of samples (N) or positions (N, ...) in the statistics, at least 0; undefined if
  /// every weight is 1. A weight of 0 masks padding out.
  Tensor position_weights = {};
};

/// The arguments of batch_norm() beside its input.
struct BatchNormArgs : BatchNormForwardOptions {
  std::string name = "batch_norm";  ///< names the layer in errors: "SyncBatchNorm 'layer1.0.bn1'"
  InputDims input_dims = {};
  /// The C that x must have. If it is 0, the size of the tensors below decides, if any is defined.
  std::int64_t channels = 0;
  Tensor weight, bias;  ///< float32 or float64, (C); undefined they stand for 1 and 0
  kernels::RunningStatistics running;  ///< undefined if none are kept
  bool use_batch_statistics = true;    ///< false: normalise by the running statistics
  bool update_running = true;          ///< has an effect with batch statistics only
  /// Takes 0 and 1 for running mean and standard deviation, in a layer whose own ones were folded
  /// into the layer before it; has no effect with batch statistics.
  bool is_folded = false;
  kernels::Tracking tracking = kernels::Tracking::momentum;
  double momentum = 0.1;
  kernels::Epsilon eps;
  /// Whether the output is computed again in backward (BatchNorm::Options::recompute_output).
  bool recompute_output = false;
  /// The ranks that share their statistics; has no effect with running statistics.
  std::optional<ProcessGroup> group;
};

/// Returns y = (x - mean) / sqrt(var + eps) weight + bias (+ residual, then ReLU) for x of shape
/// (N, C, ...), in the memory format of x. The statistics are taken over all dimensions but C, and
/// over all ranks of `group`: one all-reduce of 8 (2C + 8) bytes in the forward, one in the
/// backward. For float64 x the forward sends 8 (4C + 8) bytes, so that no digit of float64 is lost
/// (kernels/batch_norm.h); x must therefore have the same dtype on every rank.
///
/// With position weights w, mean = sum(w x) / sum(w), and var likewise. An x at a position of
/// weight 0 may be anything, NaN included: it does not enter the statistics. The output there is
/// what the formula yields, so where it is NaN its gradient must be 0.
///
/// The gradient of x is that of the *sum* of the ranks' losses; the gradients of weight and bias
/// are this rank's share. An empty x is legal, and its rank takes part in the collectives. If N is
/// 0 on all ranks together, the running statistics stay as they are.
///
/// Throws ShapeError, DTypeError or DeviceError if x and the other tensors do not fit together;
/// ValueError for an eps that is negative or not finite, a momentum outside [0, 1], and (on the
/// CPU, where reading values is free) a position weight that is negative or not finite. Nothing has
/// changed then, and the other ranks get a DistributedError that says so. Throws ShapeError on
/// every rank if all ranks together have one value per channel; no running statistic has changed
/// then. Throws DistributedError if the ranks are at different layers or phases (or at different
/// calls of a layer), differ in the dtype of x, eps, momentum, tracking or in which parameters and
/// statistics there are, or disagree on whether there will be a backward.
///
/// On CUDA the host does not wait for the device. The device itself checks what only values in its
/// memory tell: whether the ranks are at the same call, and whether the batch counts more than one
/// value per channel. If a check fails, the device leaves the running statistics unchanged, and the
/// error is deferred: the backward of this call, a later call of the same layer or
/// BatchNorm::check_statistics() throws it, whichever first sees that the values have arrived on
/// the host. It then aborts the group, so that no rank waits. The host does not learn whether other
/// ranks need this rank's gradient sums, so every rank that runs a backward of the layer takes part
/// in the collective. All ranks must run that backward or none, even if only weights need
/// gradients.
///
/// The function keeps no state between calls: every call has the number 1, and on CUDA only its own
/// backward throws its deferred errors. Layers count their calls and keep the deferred errors of
/// all of them.
Tensor batch_norm(const Tensor& x, const BatchNormArgs& args);

}  // namespace tutti::nn
