// A Call is one call of batch_norm whose arguments fit together, with its tensors as the kernels
// need them: dense, without history. This file checks and prepares arguments; it computes nothing.
#pragma once

#include "deferred_errors.h"
#include "functional.h"

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

/// One call of batch_norm.
struct Call {
  BatchNormArgs args;
  CallId id = {};
  Tensor input = {};             ///< x as given, with its autograd history
  Tensor x = {};                 ///< x dense, without history
  Tensor position_weights = {};  ///< dense, one for every position; undefined if all are 1
  NeededGradients needed = {};
  /// Whether the statistics are those of the batches of all ranks of args.group, not of this rank's
  /// batch.
  bool is_synchronized = false;
  /// Whether this is the second run of recompute(), which loads the statistics that the first run
  /// saved.
  bool is_recomputation = false;
  std::shared_ptr<CallHistory> history = {};

  const kernels::BatchNorm& kernels() const { return tutti::kernels::batch_norm(x.device()); }
  std::int64_t channels() const { return x.size(1); }
  bool uses_running_statistics() const { return !args.use_batch_statistics; }
  bool computes_statistics() const { return args.use_batch_statistics && !is_recomputation; }
  /// Returns whether one kernel can compute the whole call: it normalises by the batch of this rank
  /// alone and has no position weights.
  bool fits_one_kernel() const {
    return computes_statistics() && !is_synchronized && !position_weights.defined();
  }
};

/// Checks the arguments and returns a Call that holds them. First throws the oldest deferred error
/// of earlier calls that has arrived. Throws the errors that batch_norm documents for its
/// arguments; the other ranks, which would wait for this rank's statistics, then get an error too.
/// `partner`, if not null, is a synchronised call that shares its collective with this one; the
/// groups of both must be equal.
Call checked_call(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history, const Call* partner = nullptr);

/// Shows a call that is going to be computed to the observer of its layer, if there is one.
void observe(const Call& call);

/// Returns which of the tensors need a gradient in the current grad mode.
NeededGradients needed_gradients(const Tensor& input, const BatchNormArgs& args);

/// Throws ShapeError unless `residual` is undefined or has the shape, dtype and device of the
/// input.
void check_residual(const Call& call, const Tensor& residual);

/// Returns x without history, dense in `format`: x itself if it is so already, else a copy.
Tensor dense(const Tensor& x, MemoryFormat format);

/// Returns the memory format in which x is dense. For any other x it returns channels_last if the
/// channels are neighbours in memory, else contiguous.
MemoryFormat format_of(const Tensor& x);

}  // namespace tutti::nn
