// check_replicas(): a debugging check that tensors which must be the same on every rank (weights,
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

}  // namespace tutti::distributed
