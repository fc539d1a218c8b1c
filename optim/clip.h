// Gradient clipping by the global norm, between backward and the optimizer's step.
#pragma once

#include "../core/tensor.h"

#include <vector>

namespace tutti::optim {

/// Returns the Euclidean norm over all gradients together, as a float64 tensor of shape (). The
/// host does not wait for it; item() does. If the norm exceeds `max_norm`, every gradient is
/// multiplied in place by max_norm / (norm + 1e-6); otherwise none changes. Parameters without a
/// gradient do not count. ValueError unless max_norm is above 0; DeviceError if gradients are on
/// several devices.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tutti::optim
