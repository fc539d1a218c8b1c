// A small training run for tests of CUDA graphs. Its steps run eagerly or, from a given step on,
// are replayed from a graph; both must give the same bits.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/core/random.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/schedule.h>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>

namespace tutti::test {

struct StepCase {
  std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>&)> optimizer;
  double clip = 0;                ///< the largest norm of the gradient; 0 turns clipping off
  double dropout = 0;             ///< used twice, once under recomputation
  bool scaled = false;            ///< scales the loss so much that some steps overflow
  bool recompute_output = false;  ///< of the batch norm, whose output a convolution saves
};

constexpr int captured_steps = 8;

/// Trains and returns the losses of all steps, every number of the model and of the optimizer, and
/// the final position of the random generator. Learning rate and momentum change in every step.
/// Step `graph_from` is captured; it and all later ones are replayed.
inline std::vector<double> train_captured(const StepCase& c, Device device,
                                          const ProcessGroup& group, int graph_from) {
  cuda::settings().deterministic = true;
  manual_seed(7);
  nn::Sequential net;
  auto& body = net.add<nn::Sequential>("body");
  body.append<nn::Conv2d>({.in = 3, .out = 4, .kernel = 3, .bias = false});
  body.append<nn::BatchNorm2d>(
      {.channels = 4, .momentum = std::nullopt, .recompute_output = c.recompute_output});
  body.append<nn::Conv2d>({.in = 4, .out = 4, .kernel = 1, .bias = false});
  body.append<nn::ReLU>();
  body.append<nn::Dropout>({.p = c.dropout});
  body.append<nn::Flatten>();
  auto& head = net.add<nn::Sequential>("head");
  head.append<nn::Dropout>({.p = c.dropout});
  head.append<nn::Linear>({.in = 4 * 4 * 4, .out = 5});
  net.to(device, float32, MemoryFormat::channels_last);
  nn::convert_sync_batchnorm(net, group);
  distributed::DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
  const auto optimizer = c.optimizer(net.parameters());
  optim::Scheduler schedule(*optimizer, optim::one_cycle({.steps = captured_steps}));
  // The scale is too large for some gradient at first, and again whenever it grows.
  optim::GradScaler scaler({.init_scale = 3e38, .growth_interval = 1});

  const Tensor images =
      zeros({4, 3, 6, 6}, {.device = device}).contiguous(MemoryFormat::channels_last);
  const Tensor labels = tensor({0, 1, 2, 3}, {.dtype = int64}).to(device),
               tally = zeros({}, {.device = device});
  const auto step = [&] {
    const Tensor loss = nn::cross_entropy(head(body(images)), labels);
    optimizer->zero_grad();
    (c.scaled ? scaler.scale(8 * loss) : loss).backward();
    if (c.scaled) scaler.unscale_(*optimizer);
    if (c.clip > 0) optim::clip_grad_norm(net.parameters(), c.clip);
    if (c.scaled) scaler.step(*optimizer), scaler.update();
    else optimizer->step();
    const NoGrad no_grad;
    tally.add_(loss.detach());
  };
  std::vector<double> numbers;
  const auto keep = [&](const StateDict& tensors) {
    for (const auto& [_, t] : tensors)
      for (const double number : to_vector(t)) numbers.push_back(number);
  };
  std::optional<cuda::Graph> graph;
  for (int i = 0; i < captured_steps; ++i) {
    Generator random(static_cast<std::uint64_t>(100 * i + group.rank()));
    images.copy_(randn(images.shape(), {}, random).to(device));
    optimizer->set_momentum(0.85 + 0.01 * i);
    if (i == graph_from) graph.emplace(device, step);
    graph ? graph->replay() : step();
    schedule.step();
    numbers.push_back(tally.item<double>());
    if (c.scaled) numbers.push_back(scaler.current_scale());
  }
  keep(net.state_dict());
  keep(optimizer->state_dict().tensors);
  if (c.scaled) {
    keep(scaler.state_dict());
    const auto made = optimizer->state_dict().tensors.front().second.select(0, 0).item<int>();
    EXPECT_TRUE(made > 1 && made < captured_steps - 1)
        << made << " steps; some should have been skipped";
  }
  numbers.push_back(static_cast<double>(default_generator().state().position));
  return numbers;
}

constexpr int never = captured_steps;

}  // namespace tutti::test
