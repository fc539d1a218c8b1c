// Recomputation (PyTorch calls it activation checkpointing) trades compute for memory: a part of
// the model saves no activations for backward, and runs again when its gradient is needed. Results
// that must not be computed twice (statistics, collectives) are kept on a tape.
#pragma once

#include "../core/tensor.h"

#include <functional>
#include <string>
#include <vector>

namespace tutti {

/// Returns fn(inputs) and records it as one operation that saves its inputs only. Backward runs
/// `fn` again on them, now recorded, and gradients flow to the inputs and to every leaf that `fn`
/// uses. Inputs may be undefined.
///
/// `fn` must compute the same thing both times. The second run has the Autocast and the default
/// generator's state of the first, so dropout repeats its mask. Normalisation layers take their
/// statistics from the tape: they update their running statistics once and communicate once.
Tensor recompute(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                 const std::vector<Tensor>& inputs);

namespace autograd {

/// RecomputeTape holds what operations of the first run save for the second, first in, first out.
/// When calls of recompute() are nested, the inner one runs for the first time again while the
/// outer one is recomputed: its operations then load from the outer tape, and the inner tape keeps
/// a copy.
class RecomputeTape {
 public:
  /// Returns the tape of the innermost recompute() that runs on this thread; null outside of one.
  static RecomputeTape* current();

  /// Returns whether operations must load() results instead of computing and saving them.
  bool is_recomputing() const { return recomputing_ || (outer_ && outer_->is_recomputing()); }
  /// Appends an entry. `owner` names the layer that it belongs to.
  void save(const std::string& owner, const std::vector<Tensor>& tensors);
  /// Returns the next entry. Throws an Error if the second run asks for more entries than the first
  /// one saved, or if the entry belongs to another owner.
  std::vector<Tensor> load(const std::string& owner);

 private:
  friend Tensor tutti::recompute(const std::function<Tensor(const std::vector<Tensor>&)>&,
                                 const std::vector<Tensor>&);
  class Scope;
  struct Entry {
    std::string owner;
    std::vector<Tensor> tensors;
  };
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
  RecomputeTape* outer_ = nullptr;  // set during the first run only
  bool recomputing_ = false;
};

}  // namespace autograd
}  // namespace tutti
