// A Call is one call of batch_norm whose arguments fit together, with its tensors as the kernels
// need them: dense, without history. call.cpp checks and prepares the arguments, forward.cpp
// computes the output, and backward.cpp the gradients from what is declared last.
#pragma once

#include "../../kernels/kernels.h"
#include "functional.h"
#include "packet.h"

#include <functional>
#include <memory>
#include <tuple>
#include <vector>

namespace tutti::nn {

/// The state that a layer keeps between its calls.
struct CallHistory {
  std::int64_t layer = 0;  ///< the number of the layer in its group, from 1; 0 for a function
  /// The forwards in training of a layer with a group; must be the same on every rank.
  std::int64_t synchronized_calls = 0;
  /// The CallId::traits of the last synchronised call, and what they were made of.
  std::string traits = {};
  std::tuple<DType, double, bool, kernels::Tracking, double, bool, bool, bool> traits_of = {};
  DeferredErrors deferred_errors;
  /// Sees the dense input and the position weights of every call, if it is set (StatisticsRun).
  std::function<void(const Tensor& x, const Tensor& position_weights)> observe = {};
};

/// The gradients that the backward of a call computes.
struct NeededGradients {
  bool input = false, weight = false, bias = false, residual = false;
  bool any() const { return input || weight || bias || residual; }
};

/// One call of batch_norm, which its arguments outlive.
struct Call {
  const BatchNormArgs& args;
  const Tensor& input;  ///< x as given, with its autograd history
  CallId id = {};
  Tensor x = {};                 ///< x dense, without history
  Tensor position_weights = {};  ///< dense, one for every position; undefined if all are 1
  NeededGradients needed = {};
  /// Whether the statistics are those of the batches of all ranks of args.group, not of this rank's
  /// batch.
  bool is_synchronized = false;
  std::shared_ptr<CallHistory> history = {};

  const kernels::BatchNorm& kernels() const { return tutti::kernels::on(x.device()).batch_norm; }
  std::int64_t channels() const { return x.size(1); }
};

/// Checks the arguments and returns a Call that holds them. First throws the oldest deferred error
/// of earlier calls that has arrived. Throws the errors that batch_norm documents for its
/// arguments; the other ranks, which would wait for this rank's statistics, then get an error too.
Call checked_call(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history);

/// Returns x without history, dense in `format`: x itself if it is so already, else a copy.
Tensor dense(const Tensor& x, MemoryFormat format);

/// Returns the memory format in which x is dense. For any other x it returns channels_last if the
/// channels are neighbours in memory, else contiguous.
MemoryFormat format_of(const Tensor& x);

// ---- The forward, and what it hands to the backward.

/// Computes batch_norm(x, args) as the next call in `history`, which belongs to the calling layer.
Tensor batch_norm(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history);

/// The output of a call, and how it was computed from x.
struct Output {
  Tensor y;
  kernels::Normalization normalization = {};
  /// The packet of count, mean and M2 over all ranks; undefined in evaluation.
  Tensor moments = {};
  /// Whether some rank needs the gradient of its input, for which the backward must all-reduce.
  bool input_gradient_needed = false;
};

/// Makes the backward of batch norm that of the output if an input needs a gradient; returns y.
Tensor record_backward(const Call& call, const Output& output);

}  // namespace tutti::nn
