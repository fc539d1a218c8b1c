// recompute() around a SyncBatchNorm: the second run uses the statistics of the first one whatever
// happens to the layer in between, or backward is an error on every rank. Called on every rank of a
// group, as threads or as processes.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/recompute.h>
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

namespace recompute_case {

using Change = std::function<void(nn::SyncBatchNorm& layer)>;

/// Runs forward, `change` and backward. Returns the gradients, and what backward throws.
struct Result {
  std::vector<std::vector<double>> gradients;
  std::string error;
};
inline Result run(const ProcessGroup& group, bool trains, bool recomputes, const Change& change) {
  Generator random(20 + group.rank());
  nn::SyncBatchNorm layer({.channels = 3, .dtype = float64, .group = group});
  layer.train(trains);
  const Tensor x = randn({4, 3}, {float64}, random).requires_grad_();
  const auto fn = [&](const std::vector<Tensor>& in) { return layer(in[0]) * in[0]; };
  const Tensor y = recomputes ? recompute(fn, {x}) : fn({x});
  change(layer);
  try {
    sum(pow(y, 3)).backward();
  } catch (const Error& error) {
    return {{}, error.what()};
  }
  return {{to_vector(x.grad()), to_vector(layer.weight.grad()), to_vector(layer.running_var)}, ""};
}

}  // namespace recompute_case

inline void check_recomputed_sync_batch_norm(const ProcessGroup& group) {
  using recompute_case::Change;
  using recompute_case::run;
  const auto forward = [&](nn::SyncBatchNorm& layer) {
    Generator random(50 + group.rank());
    layer(randn({5, 3}, {float64}, random));
  };
  // The running statistics that another forward moves are not those of the batch.
  const Change nothing = [](nn::SyncBatchNorm&) {};
  for (const Change& change : std::vector<Change>{nothing, forward}) {
    const auto got = run(group, true, true, change), expected = run(group, true, false, change);
    EXPECT_EQ(got.error, "");
    EXPECT_EQ(got.gradients, expected.gradients);
  }
  const auto expect_error = [&](bool trains, const Change& change, const std::string& text) {
    const std::string error = run(group, trains, true, change).error;
    EXPECT_NE(error.find("SyncBatchNorm"), std::string::npos) << error;
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect_error(
      true, [](auto& layer) { layer.eval(); },
      "in evaluation where the first one was at SyncBatchNorm in training");
  expect_error(
      false, [](auto& layer) { layer.train(); },
      "in training where the first one was at SyncBatchNorm in evaluation");
  const auto trained_meanwhile = [&](nn::SyncBatchNorm& layer) {
    layer.train();
    forward(layer);
    layer.eval();
  };
  expect_error(false, trained_meanwhile, "was changed in place since the first one");
  // The group is as before: nobody waits for a collective.
  EXPECT_EQ(run(group, true, true, nothing).gradients, run(group, true, false, nothing).gradients);
}

}  // namespace tutti::test
