// A Call is one call of batch_norm whose arguments fit together, with its tensors as the kernels
// need them: dense, without history. This file checks and prepares arguments; it computes nothing.
#pragma once

#include "deferred_errors.h"
#include "functional.h"

#include <memory>
#include <vector>

namespace tutti::nn {

/// What a layer remembers of its earlier calls.
struct CallHistory {
  std::int64_t synchronized_calls = 0;  ///< must be the same on every rank
  DeferredErrors deferred_errors;
};

/// Which gradients the backward of a call computes.
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
  Tensor position_weights = {};  ///< dense, one for every position; undefined: all 1
  NeededGradients needed = {};
  bool is_synchronized = false;  ///< the batch is that of all ranks of args.group, not of this one
  /// autograd::recompute runs the call for the second time: the statistics of the first are
  /// replayed.
  bool is_recomputation = false;
  std::shared_ptr<CallHistory> history = {};

  const kernels::BatchNorm& kernels() const { return tutti::kernels::batch_norm(x.device()); }
  std::int64_t channels() const { return x.size(1); }
  bool uses_running_statistics() const { return !args.use_batch_statistics; }
  bool computes_statistics() const { return args.use_batch_statistics && !is_recomputation; }
  /// Whether this rank alone has all values that count, so that one kernel computes everything.
  bool fits_one_kernel() const {
    return computes_statistics() && !is_synchronized && !position_weights.defined();
  }
};

/// Checks the arguments and makes a Call of them. Throws what batch_norm documents for arguments,
/// and tells the other ranks about it, which wait for this rank's statistics. Before that, it
/// throws what the device has found about earlier calls. `partner`, if there is one, is another
/// synchronised call whose collective this one is to share: it must be of the same group.
Call checked_call(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history, const Call* partner = nullptr);

/// Returns which of the tensors need a gradient in the present grad mode.
NeededGradients needed_gradients(const Tensor& input, const BatchNormArgs& args);

/// Throws ShapeError if `residual` is not like x.
void check_residual(const Call& call, const Tensor& residual);

/// Returns x without history, dense in `format`: x itself if it is so already, else a copy.
Tensor dense(const Tensor& x, MemoryFormat format);

/// Returns the format in which x is dense, else the one that is nearer to its strides.
MemoryFormat format_of(const Tensor& x);

}  // namespace tutti::nn
