// The forward of batch norm for a layer, and its steps. batch_norm (forward.cpp) takes the steps
// for one layer, in the order in which they stand here; JointBatchNorm (joint.cpp) takes them for
// several layers that share one collective.
#pragma once

#include "arguments.h"

namespace tutti::nn {

/// Computes batch_norm(x, args) as the next call in `history`, which belongs to the calling layer.
Tensor batch_norm(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history);

/// The statistics by which a call normalises, and where they come from.
struct Statistics {
  Tensor mean = {}, rstd = {};  ///< float64, (C)
  /// The packet of count, mean and M2 over all ranks; undefined in evaluation.
  Tensor moments = {};
  /// Whether apply() has yet to compute the tensors above, from `sums` or, if these are undefined,
  /// from `moments`.
  bool is_pending = false;
  Tensor sums = {};              ///< The packet of sums over all ranks.
  std::int64_t call_number = 0;  ///< the number of the call that computed the statistics
  /// Whether some rank needs the gradient of its input, for which the backward must all-reduce.
  bool input_gradient_needed = false;
};

/// The output of a call, and how it was computed from x.
struct Output {
  Tensor y;
  Statistics statistics;
  kernels::Normalization normalization;
};

/// Takes the steps of a forward, without recording its backward: computes the statistics, moves the
/// running ones, and applies them to x.
Output compute_output(const Call& call);

/// Computes the packet of this rank. In a synchronised call it holds sums, which can be added over
/// the ranks. In any other call it holds moments, and this rank's batch is the whole batch.
Tensor local_sums(const Call& call);

/// Adds the packets of all ranks in place, by one collective, and returns the summed header. The
/// packet of a call that is not synchronised does not change.
kernels::PacketHeader all_reduce(const Call& call, const Tensor& packet);

/// Returns the header of the packet of the whole batch. all_reduce() ends with this step; a call
/// that is not synchronised needs no other.
kernels::PacketHeader read_header(const Call& call, const Tensor& packet);

/// Returns the statistics of the whole batch, of which `packet` is the packet. They are pending:
/// apply() computes them and moves the running statistics.
Statistics pending_statistics(const Call& call, const Tensor& packet,
                              const kernels::PacketHeader& header);

/// Computes statistics that are pending and moves the running ones, without an output.
void finalize_statistics(const Call& call, Statistics& statistics);

/// Counts the call if its layer has a group, and saves the statistics on the tape if the call runs
/// inside recompute().
void remember(const Call& call, const Statistics& statistics);

/// Computes mean and rstd from the running statistics (evaluation).
Statistics running_statistics(const Call& call);

/// Loads the statistics that the first run of recompute() saved.
Statistics saved_statistics(const Call& call);

/// Normalises x; adds the residual and applies the ReLU where the call has them. Pending statistics
/// are computed in the same launch where the device can do so.
Output apply(const Call& call, const Statistics& statistics);

/// Makes batch_norm_backward the backward of the output if an input needs a gradient; returns y.
Tensor record_backward(const Call& call, const Output& output);

}  // namespace tutti::nn
