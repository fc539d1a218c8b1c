// Ranks that use different parameters (find_unused_parameters): the gradients that they get, and
// when their buckets start, alone and among other collectives of the same backward.
#pragma once

#include "data_parallel_case.h"

#include <tutti/distributed/functional.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/layer.h>

namespace tutti::test {

namespace unused_case {

inline StateDict model_on(Device device, const ProcessGroup& group) {
  StateDict model = small_model(group, true);
  for (auto& [name, tensor] : model) tensor = tensor.detach().to(device).requires_grad_();
  return model;
}

/// Runs these layers of the model one after the other.
inline Tensor chain(const StateDict& model, const std::vector<std::size_t>& layers, Tensor x) {
  for (const std::size_t layer : layers)
    x = tanh(matmul(x, model[2 * layer].second) + model[2 * layer + 1].second);
  return x;
}

inline Tensor input_of(int rank, int step, Device device) {
  Generator generator(1000 * step + rank);
  return randn({4, 6}, {.dtype = float64}, generator).to(device);
}

/// Returns the means over the ranks of the gradients that `backward` gives each of them while no
/// DataParallel lives, where an absent gradient counts as zeros.
inline std::vector<Tensor> mean_gradients(const ProcessGroup& group, const StateDict& model,
                                          const std::function<void()>& backward) {
  backward();
  std::vector<Tensor> means;
  for (const auto& [name, parameter] : model) {
    const Tensor gradient = parameter.grad();
    means.push_back(gradient.defined() ? gradient.clone() : zeros_like(parameter.detach()));
    group.all_reduce(means.back(), distributed::ReduceOp::mean).wait();
  }
  clear_gradients(model);
  return means;
}

inline void expect_gradients(const StateDict& model, const std::vector<Tensor>& expected) {
  for (std::size_t p = 0; p < model.size(); ++p) {
    const Tensor gradient = model[p].second.grad();
    const bool is_used = sum(square(expected[p])).item<double>() > 0;
    ASSERT_EQ(gradient.defined(), is_used) << model[p].first;
    if (is_used) expect_close(gradient, expected[p], 1e-13, model[p].first);
  }
}

inline distributed::DataParallelOptions options() {
  auto options = small_buckets;
  options.find_unused_parameters = true;
  return options;
}

}  // namespace unused_case

/// A bucket starts when those of its parameters are there that this rank's backward reaches.
inline void check_buckets_start_without_unused_parameters(const ProcessGroup& group,
                                                          Device device) {
  const StateDict model = unused_case::model_on(device, group);
  std::vector<std::string> events;
  // All ranks use layer a. Half of them use b, too, and the others c, which nobody uses at last.
  const auto backward = [&](int step) {
    const std::size_t other = step < 2 ? 1 + static_cast<std::size_t>(group.rank() + step) % 2 : 1;
    StateDict spied = model;
    spied[0].second =
        autograd::record("spy", model[0].second.detach().clone(), {model[0].second}, [&](auto& g) {
          events.push_back("the first layer");
          return g;
        });
    const Tensor x = unused_case::input_of(group.rank(), step, device);
    sum(unused_case::chain(spied, {0, other}, x)).backward();
  };
  std::vector<std::vector<Tensor>> expected;
  for (int step = 0; step < 3; ++step)
    expected.push_back(unused_case::mean_gradients(group, model, [&] { backward(step); }));
  auto options = unused_case::options();
  options.communication = [&](const ProcessGroup& ranks, const Tensor& bucket,
                              distributed::CallOptions call) {
    events.push_back(call.name.substr(0, call.name.find(':')));
    return ranks.all_reduce(bucket, distributed::ReduceOp::sum, std::move(call));
  };
  const distributed::DataParallel ddp(model, {}, group, options);
  ASSERT_EQ(ddp.buckets().size(), 4u);
  ASSERT_EQ(ddp.buckets()[3], std::vector<std::string>{"a.weight"});
  for (int step = 0; step < 3; ++step) {
    clear_gradients(model);
    events.clear();
    backward(step);
    EXPECT_EQ(events, (std::vector<std::string>{"bucket 0", "bucket 1", "bucket 2",
                                                "the first layer", "bucket 3"}));
    unused_case::expect_gradients(model, expected[static_cast<std::size_t>(step)]);
  }
}

/// A parameter that the backward does not reach keeps what no_sync() scopes have accumulated.
inline void check_accumulated_gradients_of_unused_parameters(const ProcessGroup& group,
                                                             Device device) {
  const StateDict model = unused_case::model_on(device, group);
  const auto backward = [&](std::size_t layer, int step) {
    sum(unused_case::chain(model, {layer}, unused_case::input_of(group.rank(), step, device)))
        .backward();
  };
  const auto expected = unused_case::mean_gradients(group, model, [&] {
    backward(1, 0);
    backward(0, 1);
  });
  distributed::DataParallel ddp(model, {}, group, unused_case::options());
  {
    const auto scope = ddp.no_sync();
    backward(1, 0);
  }
  backward(0, 1);
  unused_case::expect_gradients(model, expected);
  // What is there already is the same on every rank, and its mean is itself.
  const auto values = to_vector(model[2].second.grad());
  backward(0, 2);
  expect_close(model[2].second.grad(), tensor(values, {6, 6}, {float64, device}), 1e-15, "b");
}

/// Ranks that use different parameters before and after a collective of the model, on the group of
/// the buckets, agree on the order of both.
inline void check_unused_parameters_beside_a_collective(const ProcessGroup& group, Device device) {
  const StateDict model = unused_case::model_on(device, group);
  const auto backward = [&] {
    const std::size_t first = static_cast<std::size_t>(group.rank()) % 2;
    const Tensor x = unused_case::input_of(group.rank(), 0, device);
    const Tensor y = distributed::all_reduce(unused_case::chain(model, {first}, x), group);
    sum(unused_case::chain(model, {1 - first}, y)).backward();
  };
  const auto expected = unused_case::mean_gradients(group, model, backward);
  const distributed::DataParallel ddp(model, {}, group, unused_case::options());
  backward();
  unused_case::expect_gradients(model, expected);
}

/// The same for the buckets of two models that one backward goes through.
inline void check_unused_parameters_of_two_models(const ProcessGroup& group, Device device) {
  const StateDict one = unused_case::model_on(device, group),
                  other = unused_case::model_on(device, group);
  StateDict both = one;
  both.insert(both.end(), other.begin(), other.end());
  const auto backward = [&] {
    const bool even = group.rank() % 2 == 0;
    const Tensor x = unused_case::input_of(group.rank(), 0, device),
                 y = unused_case::chain(even ? one : other, {0}, x),
                 z = unused_case::chain(even ? other : one, {0}, y);
    sum(unused_case::chain(other, {1}, z)).backward();
  };
  const auto expected = unused_case::mean_gradients(group, both, backward);
  const distributed::DataParallel of_one(one, {}, group, unused_case::options()),
      of_other(other, {}, group, unused_case::options());
  backward();
  unused_case::expect_gradients(both, expected);
}

/// Two SyncBatchNorm layers, and a layer before them that not every rank uses. As the last one in
/// the list, it is in the first buckets.
struct NetWithOptionalLayer : nn::Layer {
  nn::Linear& first = add<nn::Linear>("first", {.in = 5, .out = 6});
  nn::BatchNorm& bn1 = add<nn::BatchNorm1d>("bn1", {.channels = 6});
  nn::BatchNorm& bn2 = add<nn::BatchNorm1d>("bn2", {.channels = 6});
  nn::Linear& optional = add<nn::Linear>("optional", {.in = 5, .out = 5});
  bool uses_optional = false;
  Tensor forward(const Tensor& x) override {
    return bn2(tanh(bn1(first(uses_optional ? optional(x) : x))));
  }
};

/// No rank waits for another one that has issued statistics and buckets in another order.
inline void check_unused_parameters_beside_statistics(const ProcessGroup& group, Device device) {
  NetWithOptionalLayer net;
  net.uses_optional = group.rank() == 0;
  net.to(device);
  nn::convert_sync_batchnorm(net, group);
  const StateDict parameters = net.named_parameters();
  distributed::DataParallelOptions options{.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4};
  options.find_unused_parameters = true;
  const distributed::DataParallel ddp(parameters, {}, group, options);
  for (int step = 0; step < 2; ++step) {
    clear_gradients(parameters);
    Generator data(10 * step + group.rank());
    const Tensor y = net(randn({4, 5}, {}, data).to(device));
    sum(square(y) * y).backward();
    for (const auto& [name, parameter] : parameters) {
      const Tensor of_rank_0 = parameter.grad().clone();
      group.broadcast(of_rank_0, 0).wait();
      EXPECT_EQ(to_vector(parameter.grad()), to_vector(of_rank_0)) << name;
    }
  }
}

/// Everything of this file. It needs two ranks or more.
inline void check_unused_parameters_of_each_rank(const ProcessGroup& group,
                                                 Device device = Device::cpu()) {
  if (group.size() == 1) return;
  check_buckets_start_without_unused_parameters(group, device);
  check_accumulated_gradients_of_unused_parameters(group, device);
  check_unused_parameters_beside_a_collective(group, device);
  check_unused_parameters_of_two_models(group, device);
  check_unused_parameters_beside_statistics(group, device);
}

}  // namespace tutti::test
