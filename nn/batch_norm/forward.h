// The forward of batch norm for a layer, and its steps. batch_norm (forward.cpp) takes the steps
// for one layer, in the order in which they stand here; JointBatchNorm (joint.cpp) takes them for
// several layers that share one collective.
#pragma once

#include "arguments.h"

namespace tutti::nn {

/// batch_norm with the history of the layer that calls it.
Tensor batch_norm(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history);

/// The statistics by which a call normalises, and what its backward must know of them.
struct Statistics {
  Tensor mean = {}, rstd = {};  ///< float64, (C)
  Tensor moments = {};  ///< a packet of count, mean and M2 over all ranks; undefined in evaluation
  std::int64_t call_number = 0;        ///< of the call that has computed them
  bool input_gradient_needed = false;  ///< on some rank, so that the backward all-reduces, too
};

/// The output of a call, and how it was computed from x.
struct Output {
  Tensor y;
  Statistics statistics;
  kernels::Normalization normalization;
};

/// Computes the packet of this rank: sums that can be added over the ranks of a synchronised call;
/// otherwise its moments, which are then those of the whole batch.
Tensor local_sums(const Call& call);

/// Adds the packets of all ranks, in place, by one collective and returns what their headers say.
/// The packet of a call that is not synchronised stays as it is.
kernels::PacketHeader all_reduce(const Call& call, const Tensor& packet);

/// The part of all_reduce() after the collective, or in its place: returns what the packet of the
/// whole batch says in its header.
kernels::PacketHeader read_header(const Call& call, const Tensor& packet);

/// Computes mean and rstd from the packet of the whole batch, and moves the running statistics.
Statistics finalize_statistics(const Call& call, const Tensor& packet,
                               const kernels::PacketHeader& header);

/// Keeps what other runs need: the statistics for a recomputation, and the number of synchronised
/// calls for the next call.
void remember(const Call& call, const Statistics& statistics);

/// Takes mean and rstd from the running statistics (evaluation).
Statistics running_statistics(const Call& call);

/// Takes the statistics that the first run of a recomputation has saved.
Statistics saved_statistics(const Call& call);

/// Normalises x; adds the residual and applies the ReLU where the call has them.
Output apply(const Call& call, const Statistics& statistics);

/// Makes batch_norm_backward the backward of the output if an input needs a gradient; returns y.
Tensor record_backward(const Call& call, const Output& output);

}  // namespace tutti::nn
