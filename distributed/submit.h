// submit(): the steps between a checked collective and the backend, which are the same for every
// backend: it copies tensors that have gaps or are on another device, numbers and counts the call,
// injects faults, measures times and copies the result back.
#pragma once

#include "backend.h"
#include "process_group.h"

namespace tutti::distributed {

/// Runs the checks of the arguments of `call`, and refuses it before their error leaves.
template <class Checks>
void check_together(const ProcessGroup& group, const std::string& call, const Checks& checks) {
  try {
    checks();
  } catch (const Error& error) {
    group.refuse({.name = "refused " + call}, error.what());
    throw;
  }
}

/// Starts a collective. The caller sets operation, op, root, input and output of `call`, with
/// tensors of any strides and device; submit() sets sequence and what the
/// options say.
Work submit(const std::shared_ptr<Backend>& backend, Collective call, CallOptions options);

/// Returns a Work that waits for `work`, and then copies its result `from` to `to`, once.
Work copy_after(Work work, const Tensor& from, const Tensor& to);

}  // namespace tutti::distributed
