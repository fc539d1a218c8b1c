// ReplicaCheck: a debugging check that tensors which must be the same on every rank (weights,
// running statistics, optimizer state) are equal to the bit. It names the first tensor that differs
// and the ranks that hold another value. It does not repair anything.
#pragma once

#include "../../core/state_dict.h"
#include "../process_group.h"

namespace tutti::distributed {

/// Compares a 64-bit hash of the bytes of every tensor over the ranks. This call is collective and
/// sends 8 bytes for each tensor and rank. Where a tensor differs, every rank gets a
/// DistributedError that names the first such tensor, in the order of `state`, and the ranks that
/// hold another value; it gets one, too, where the ranks hold different numbers of tensors. The
/// check waits for the device and reads the whole state once. The error ends with `note`.
void check_replicas(const StateDict& state, const ProcessGroup& group,
                    const std::string& note = {});

/// Runs check_replicas() in every `interval`-th step:
///
///   ReplicaCheck check(net.state_dict(), group, 100);
///   for (...) { ...; check.step(); }
class ReplicaCheck {
 public:
  /// The tensors of `state` share storage with what is checked, as those of Module::state_dict()
  /// do. Throws a ValueError unless `interval` is positive.
  [[nodiscard]] ReplicaCheck(StateDict state, ProcessGroup group, std::int64_t interval);
  /// Counts a step, and checks if it is the `interval`-th since the last check; only then the call
  /// is collective. The error of check_replicas() ends with the number of the step.
  void step();

 private:
  StateDict state_;
  ProcessGroup group_;
  std::int64_t interval_;
  std::int64_t steps_ = 0;
};

}  // namespace tutti::distributed
