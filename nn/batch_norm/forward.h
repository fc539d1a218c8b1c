// The forward of batch norm (forward.cpp), and what it hands to the backward (backward.cpp).
#pragma once

#include "arguments.h"

namespace tutti::nn {

/// Computes batch_norm(x, args) as the next call in `history`, which belongs to the calling layer.
Tensor batch_norm(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history);

/// The statistics by which a call normalises.
struct Statistics {
  Tensor mean = {}, rstd = {};  ///< float64, (C)
  /// The packet of count, mean and M2 over all ranks; undefined in evaluation.
  Tensor moments = {};
  std::int64_t call_number = 0;  ///< the number of the call that computed the statistics
  /// Whether some rank needs the gradient of its input, for which the backward must all-reduce.
  bool input_gradient_needed = false;
};

/// The output of a call, and how it was computed from x.
struct Output {
  Tensor y;
  Statistics statistics;
  kernels::Normalization normalization = {};
};

/// Makes the backward of batch norm that of the output if an input needs a gradient; returns y.
Tensor record_backward(const Call& call, const Output& output);

}  // namespace tutti::nn
