// Gradient clipping by the global norm.
#pragma once

#include "../core/tensor.h"

#include <vector>

namespace tutti::optim {

/// The Euclidean norm over all gradients together, as a float64 tensor of shape () (reading it with
/// item() is the caller's choice: on a GPU that waits). Where it exceeds `max_norm`, every gradient
/// is multiplied in place by max_norm / (norm + 1e-6); otherwise none changes. Parameters without a
/// gradient do not count. ValueError unless max_norm is a number above 0; DeviceError where
/// gradients are on several devices.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tutti::optim
