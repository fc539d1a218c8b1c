// The trajectories that PyTorch computed (tests/fixtures/optim.safetensors), and a function that
// runs one of our optimizers along them.
#pragma once

#include "kernels/compare.h"

#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>
#include <tutti/optim/optimizer.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti {

inline Tensor fixture(const std::string& name) {
  static const StateDict all = load_safetensors(TUTTI_TEST_DATA "/optim.safetensors");
  for (const auto& [key, tensor] : all)
    if (key == name) return tensor;
  throw std::out_of_range("no fixture " + name);
}

/// Returns the two parameters from which every trajectory starts.
inline std::vector<Tensor> start(DType dtype = float64) {
  std::vector<Tensor> result;
  for (const char* name : {"start.0", "start.1"})
    result.push_back(fixture(name).clone().to(dtype).requires_grad_());
  return result;
}

inline void give_gradients(const std::vector<Tensor>& parameters, std::int64_t step,
                           bool skip = false) {
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const bool absent = skip && k == 1 && step % 3;
    const Tensor g = absent ? Tensor()
                            : fixture("grad." + std::to_string(k)).select(0, step).clone();
    parameters[k].set_grad(g.defined() ? g.to(parameters[k].dtype()) : g);
  }
}

/// Steps along the gradients and compares the parameters after each step with PyTorch's.
inline void expect_trajectory(const std::string& name, optim::Optimizer& optimizer,
                              const std::vector<Tensor>& parameters, double tolerance = 1e-12,
                              bool skip = false) {
  const std::int64_t steps = fixture("grad.0").size(0);
  ASSERT_GE(steps, 20);
  for (std::int64_t step = 0; step < steps; ++step) {
    give_gradients(parameters, step, skip);
    optimizer.step();
    for (std::size_t k = 0; k < parameters.size(); ++k)
      ASSERT_LT(test::relative_error(parameters[k].detach(),
                                     fixture(name + "." + std::to_string(k)).select(0, step)),
                tolerance)
          << name << ", parameter " << k << ", step " << step;
  }
}

}  // namespace tutti
