// Audit: a debug check that what should be equal on every rank is equal to the bit: weights,
// running statistics, optimizer state. It says which tensor drifted first, in the order of the
// list, and on which ranks; it mends nothing.
#pragma once

#include "../../core/state_dict.h"
#include "../process_group.h"

namespace tutti::distributed {

/// Collective: compares a 64-bit hash of every tensor's bytes over the ranks, 8 bytes a tensor and
/// rank on the wire. DistributedError, on every rank, that names the first tensor which differs and
/// how the ranks divide over it, or says that the ranks hold different numbers of tensors. Waits
/// for the device; costs one read of the state.
void expect_equal_on_ranks(const StateDict& state, const ProcessGroup& group);

/// The same every `every` steps: Audit audit(net.state_dict(), group, 100); ... audit.step();
class Audit {
 public:
  /// `state` shares storage with what is watched, as Module::state_dict() does. ValueError unless
  /// `every` is positive.
  Audit(StateDict state, ProcessGroup group, std::int64_t every);
  /// Collective in every `every`-th call, and nothing in the others. The error says which step it
  /// was.
  void step();

 private:
  StateDict state_;
  ProcessGroup group_;
  std::int64_t every_;
  std::int64_t steps_ = 0;
};

}  // namespace tutti::distributed
