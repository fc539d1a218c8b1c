// Recomputation (PyTorch calls it activation checkpointing) trades compute for memory: a part of
// the model saves no activations for backward, and runs again when its gradient is needed. A tape
// keeps the results that must not be computed twice (statistics), and checks that the second run is
// the first one again.
#pragma once

#include "../core/observer.h"
#include "../core/random.h"
#include "../core/scoped_value.h"
#include "../core/tensor.h"

#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tutti {

/// Returns fn(inputs) and records it as one operation that saves its inputs only. Backward runs
/// `fn` again on them, now recorded, and gradients flow to the inputs and to every leaf that `fn`
/// uses. Inputs may be undefined.
///
/// `fn` must compute the same thing both times. The second run has the Autocast of the first, and
/// every generator that it draws from has the state that it had then, so dropout repeats its mask;
/// afterwards the generators go on where they were. Normalisation layers take their statistics from
/// the tape: they update their running statistics once and communicate once.
///
/// Backward throws an Error, which names the layer if there is one, where the second run is not the
/// first one again: a tensor that `fn` reads was changed in place meanwhile, also by the first run
/// itself, or is another one; a layer was switched between training and evaluation; a parameter was
/// frozen or unfrozen; `fn` draws from another generator, or leaves entries of the tape. A lambda
/// captures tensors by value (the handle), because a variable that it captures by reference may be
/// another tensor in backward. Only what the calling thread does is checked.
Tensor recompute(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                 const std::vector<Tensor>& inputs);

namespace autograd {

/// RecomputeTape holds what operations of the first run save for the second, first in, first out,
/// and notes what a run uses, to compare the second run with the first.
///
/// When calls of recompute() are nested, the inner one runs for the first time again while the
/// outer one is recomputed: its operations then load from the outer tape, and the inner tape keeps
/// a copy.
class RecomputeTape : public Observer {
 public:
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;
  explicit RecomputeTape(Function function) : function_(std::move(function)) {}
  /// Calls the function, the first time as the first run and later as the second.
  Tensor run(const std::vector<Tensor>& inputs);
  /// Returns the tape of the innermost recompute() that runs on this thread; null outside of one.
  static RecomputeTape* current() { return static_cast<RecomputeTape*>(Observer::current); }

  /// Returns whether operations must load() results instead of computing and saving them.
  bool is_recomputing() const { return recomputing_ || (outer_ && outer_->is_recomputing()); }
  /// Returns the same of the current tape; false outside of recompute().
  static bool recomputes() { return current() && current()->is_recomputing(); }
  /// Appends an entry. `owner` names the layer that it belongs to.
  void save(const std::string& owner, const std::vector<Tensor>& tensors);
  /// Returns the next entry. Throws an Error if the second run asks for more entries than the first
  /// one saved, or if the entry belongs to another owner.
  std::vector<Tensor> load(const std::string& owner);
  /// Saves or loads an entry without tensors: `state` must be the same in both runs, and come in
  /// the same order.
  void expect_same(const std::string& state);

  /// Sees the inputs of an operation. Throws an Error if the second run has read a tensor that is
  /// not as it was.
  void before_record(const std::vector<Tensor>& inputs);
  void before_access(const Tensor& tensor) noexcept override;
  void before_draw(Generator& generator) override;

 private:
  struct Entry {
    std::string owner;
    std::vector<Tensor> tensors;
  };
  // What a run has used, by serials. Only what is older than the run counts; 0 stands for the
  // thread's default generator.
  struct Run {
    std::uint64_t began = next_serial(), ended = 0;
    std::map<std::uint64_t, std::uint64_t> versions;  // of storages, when they were first accessed
    std::set<std::uint64_t> trained;                  // storages of inputs that require grad
    std::map<std::uint64_t, Generator::State> generators;  // when they were first used
  };

  Function function_;
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
  RecomputeTape* outer_ = nullptr;  // set during the first run only
  bool recomputing_ = false;
  Run first_, now_;
  std::list<ScopedValue<Generator>> restored_;  // the generators that a second run uses
  std::string change_;  // what differs from the first run; empty if nothing does
};

}  // namespace autograd
}  // namespace tutti
