// Activation checkpointing: trade compute for memory by not keeping what a part of the model saves
// for backward, and running that part again when its gradient is needed. What must not happen twice
// (statistics, collectives, random draws) is remembered on a tape and replayed.
#pragma once

#include "../core/tensor.h"

#include <functional>
#include <string>
#include <vector>

namespace tutti {

/// fn(inputs), recorded as one operation that saves its inputs only. In backward, fn runs again on
/// them with recording on, and gradients flow to the inputs and to every leaf that fn uses. `fn`
/// must compute the same thing both times. For the second run the thread's default generator is
/// rewound, so dropout repeats, and Autocast is what it was for the first; normalisation layers
/// replay their statistics from the tape: running statistics are updated once, nothing is
/// communicated again. Inputs may be undefined.
Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                  const std::vector<Tensor>& inputs);

namespace autograd {

/// What operations inside a checkpoint leave for their second run, first in, first out. Where a
/// checkpoint runs for the first time inside one that is replayed, its operations take what the
/// outer one has, and it keeps that as its own.
class CheckpointTape {
 public:
  /// The tape of the innermost checkpoint running on this thread; null outside.
  static CheckpointTape* current();

  /// True where operations are to take() what they would otherwise compute and put().
  bool replaying() const { return replaying_ || (outer_ && outer_->replaying()); }
  /// `what` says whose entry it is: a layer's name.
  void put(const std::string& what, const std::vector<Tensor>& tensors);
  /// The next entry. Error where the second run asks for more than the first one left, or somebody
  /// else asks.
  std::vector<Tensor> take(const std::string& what);

 private:
  friend Tensor tutti::checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>&,
                                  const std::vector<Tensor>&);
  class Scope;
  struct Entry {
    std::string what;
    std::vector<Tensor> tensors;
  };
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
  CheckpointTape* outer_ = nullptr;  // during the first run only
  bool replaying_ = false;
};

}  // namespace autograd
}  // namespace tutti
