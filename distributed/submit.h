// submit(): the steps between a checked collective and the backend, which are the same for every
// backend: it copies tensors that have gaps or are on another device, numbers and counts the call,
// injects faults, measures times and copies the result back.
#pragma once

#include "backend.h"

namespace tutti::distributed {

/// Starts a collective. The caller sets operation, op, root, input and output of `call`, with
/// tensors of any strides and device; submit() sets sequence and what the
/// options say.
Work submit(const std::shared_ptr<Backend>& backend, Collective call, CallOptions options);

}  // namespace tutti::distributed
