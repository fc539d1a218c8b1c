// Tests of BatchNorm on one rank: values, gradients, running statistics, modes, and errors for
// wrong arguments.
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/autograd/record.h>
#include <tutti/core/trace.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/functional/layer_norm.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

namespace tutti {
namespace {

using autograd::gradcheck;
using nn::BatchNorm;
using test::relative_error;

// Computes y from elementary operations, whose gradients other tests check.
Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  Dims dims{0};
  for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
  Shape channel = Dims::filled(x.rank(), 1);
  channel[1] = x.size(1);
  const Tensor centred = x - mean(x, dims, true);
  return centred * rsqrt(mean(square(centred), dims, true) + eps) * weight.reshape(channel) +
         bias.reshape(channel);
}

TEST(BatchNorm, StartsAsTheIdentityStatistics) {
  const BatchNorm layer({.channels = 3});
  EXPECT_EQ(to_vector(layer.weight), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(to_vector(layer.bias), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(to_vector(layer.running_mean), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(to_vector(layer.running_var), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(layer.num_batches_tracked.dtype(), int64);
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : layer.state_dict()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                             "num_batches_tracked"}));
}

TEST(BatchNorm, OptionsDecideWhatThereIs) {
  EXPECT_TRUE(BatchNorm({.channels = 3, .affine = false, .track_running_stats = false})
                  .state_dict()
                  .empty());
  const BatchNorm no_bias({.channels = 3, .bias = false});
  EXPECT_TRUE(no_bias.weight.defined());
  EXPECT_FALSE(no_bias.bias.defined());
  EXPECT_TRUE(BatchNorm({.channels = 3, .pooled = true}).num_elements_tracked.defined());
}

TEST(BatchNorm, EveryFormIsASpanInTheTrace) {
  nn::Sequential net;
  std::vector<BatchNorm*> layers;
  for (int i = 0; i < 5; ++i) layers.push_back(&net.append<BatchNorm>({.channels = 2}));
  const Tensor x = randn({4, 2});
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("tutti_spans_{}.json", getpid());
  {
    trace::Profile profile(file);
    (*layers[0])(x);
    layers[1]->forward(x, {.relu = true});
    layers[2]->forward(x, {.residual = x});
    layers[3]->forward(x, {.residual = x, .relu = true});
    layers[4]->forward(x, {.position_weights = ones({4})});
    profile.finish();
  }
  std::map<std::string, int> spans;
  for (const auto& event : nlohmann::json::parse(std::ifstream(file)))
    if (event.at("ph") == "X") ++spans[event.at("name")];
  std::filesystem::remove(file);
  EXPECT_EQ(spans, (std::map<std::string, int>{{"0", 1}, {"1", 1}, {"2", 1}, {"3", 1}, {"4", 1}}));
}

TEST(BatchNorm, PrintsItsOptions) {
  EXPECT_EQ(nn::BatchNorm2d({.channels = 8}).to_string().find("BatchNorm2d(8): weight (8,)"), 0u);
  const BatchNorm layer(
      {.channels = 8, .momentum = {}, .affine = false, .eps_is_floor = true, .dtype = float64});
  EXPECT_EQ(layer.describe(), "8, eps=1e-05 as floor, momentum=none, affine=false, dtype=float64");
  BatchNorm moved({.channels = 8});
  moved.to(float64);
  EXPECT_NE(moved.describe().find("dtype=float64"), std::string::npos) << moved.describe();
}

TEST(BatchNorm, ValuesAndGradientsInEveryLayoutAndDtype) {
  Generator random(1);
  for (const DType dtype : {float64, float32, bfloat16})
    for (const Shape& shape : {Shape{7, 5}, {4, 3, 6}, {4, 20, 5, 3}, {2, 6, 3, 2, 4}})
      for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
        for (const auto gradient_format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
          SCOPED_TRACE(to_string(dtype) + to_string(shape) + to_string(format));
          BatchNorm layer({.channels = shape[1], .dtype = dtype == float64 ? float64 : float32});
          {
            const NoGrad no_grad;
            layer.weight.copy_(randn({shape[1]}, {float64}, random));
            layer.bias.copy_(randn({shape[1]}, {float64}, random));
          }
          const Tensor values = randn(shape, {float64}, random).to(dtype),
                       dy = randn(shape, {float64}, random).to(dtype);
          const Tensor x = values.contiguous(format).detach().requires_grad_();
          const Tensor y = layer(x);
          EXPECT_EQ(y.strides(), x.strides());
          EXPECT_EQ(y.dtype(), dtype);
          y.backward(dy.contiguous(gradient_format));

          const Tensor rx = values.to(float64).requires_grad_();
          const Tensor weight = layer.weight.detach().to(float64).requires_grad_(),
                       bias = layer.bias.detach().to(float64).requires_grad_();
          const Tensor ry = reference(rx, weight, bias, 1e-5);
          ry.backward(dy.to(float64));
          const double tolerance = dtype == float64 ? 1e-12 : dtype == float32 ? 1e-5 : 1e-2;
          EXPECT_LT(relative_error(y, ry), tolerance);
          EXPECT_LT(relative_error(x.grad(), rx.grad()), tolerance);
          EXPECT_LT(relative_error(layer.weight.grad(), weight.grad()), tolerance);
          EXPECT_LT(relative_error(layer.bias.grad(), bias.grad()), tolerance);
          EXPECT_EQ(layer.weight.grad().dtype(), layer.weight.dtype());
        }
}

TEST(BatchNorm, AnyStridesWork) {
  Generator random(2);
  const Tensor big = randn({6, 8, 5, 10}, {float64}, random);
  BatchNorm layer({.channels = 4, .dtype = float64});
  for (const Tensor& x : {big.slice(1, 0, 8, 2).slice(3, 1, 9, 3),
                          big.permute({0, 2, 3, 1}).slice(1, 0, 4).permute({0, 1, 3, 2}),
                          big.slice(1, 0, 1).expand({6, 4, 5, 10}),
                          big.permute({0, 2, 3, 1}).slice(3, 0, 4).permute({0, 3, 1, 2})})
    EXPECT_LT(relative_error(layer(x), reference(x, layer.weight, layer.bias, 1e-5)), 1e-12);
  // For an input with gaps the output has the memory format that is nearest to the input's strides.
  EXPECT_TRUE(layer(big.slice(1, 0, 8, 2).slice(3, 0, 5)).is_contiguous(MemoryFormat::contiguous));
  const Tensor last =
      randn({6, 4, 9, 10}, {float64}, random).contiguous(MemoryFormat::channels_last);
  EXPECT_TRUE(
      layer(last.slice(2, 1, 6).slice(3, 0, 10, 3)).is_contiguous(MemoryFormat::channels_last));
}

TEST(BatchNorm, GradientOfEveryForm) {
  Generator random(3);
  const auto leaf = [&](const Shape& shape) { return randn(shape, {float64}, random); };
  for (const bool training : {true, false})
    for (const bool floor : {false, true}) {
      BatchNorm layer(
          {.channels = 3, .eps = floor ? 1e-3 : 1e-5, .eps_is_floor = floor, .dtype = float64});
      layer.running_mean.copy_(leaf({3}));
      layer.train(training);
      const auto with = [&](auto forward) {
        return [&layer, forward](const std::vector<Tensor>& in) {
          nn::BatchNormArgs args;
          args.weight = in[1], args.bias = in[2];
          args.running = {layer.running_mean, layer.running_var, layer.num_batches_tracked, {}};
          args.use_batch_statistics = layer.is_training();
          args.update_running = false;
          args.eps = {layer.options().eps, layer.options().eps_is_floor};
          return forward(in, args);
        };
      };
      const std::vector<Tensor> inputs{leaf({4, 3, 3, 2}), leaf({3}), leaf({3}),
                                       leaf({4, 3, 3, 2})};
      for (const bool relu : {false, true})
        for (const bool residual : {false, true}) {
          const auto result =
              gradcheck(with([=](const std::vector<Tensor>& in, nn::BatchNormArgs args) {
                          args.relu = relu;
                          if (residual) args.residual = in[3];
                          return nn::batch_norm(in[0], args);
                        }),
                        inputs);
          EXPECT_TRUE(result) << result.message;
        }
      const Tensor weights = rand({4, 3, 2}, {float64}, random),
                   per_sample = rand({4}, {float64}, random);
      for (const Tensor& w : {weights, per_sample}) {
        const auto result =
            gradcheck(with([&](const std::vector<Tensor>& in, nn::BatchNormArgs args) {
                        args.position_weights = w;
                        return nn::batch_norm(in[0], args);
                      }),
                      {inputs[0].contiguous(MemoryFormat::channels_last), inputs[1], inputs[2]});
        EXPECT_TRUE(result) << result.message;
      }
    }
}

TEST(BatchNorm, EveryCombinationOfWhatNeedsAGradient) {
  Generator random(4);
  const Tensor values = randn({4, 3, 5}, {float64}, random),
               other = randn({4, 3, 5}, {float64}, random);
  const Tensor dy = randn({4, 3, 5}, {float64}, random);
  std::vector<Tensor> full;
  for (int which = 15; which >= 0; --which) {
    BatchNorm layer({.channels = 3, .dtype = float64});
    const Tensor x = values.clone().requires_grad_(which & 1),
                 r = other.clone().requires_grad_(which & 2);
    layer.weight.requires_grad_(which & 4);
    layer.bias.requires_grad_(which & 8);
    const Tensor y = layer.forward(x, {.residual = r, .relu = true});
    ASSERT_EQ(y.requires_grad(), which != 0);
    if (which == 0) break;
    y.backward(dy);
    const std::vector<Tensor> got{x.grad(), r.grad(), layer.weight.grad(), layer.bias.grad()};
    if (which == 15) full = got;
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(got[i].defined(), (which >> i & 1) != 0);
      if (!got[i].defined()) continue;
      EXPECT_LT(relative_error(got[i], full[i]), 1e-14) << which << " " << i;
    }
  }
}

TEST(BatchNorm, FusedFormsEqualTheSeparateOnes) {
  Generator random(5);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor values = randn({4, 16, 5, 5}, {}, random).contiguous(format),
                 other = randn({4, 16, 5, 5}, {}, random);
    const Tensor dy = randn({4, 16, 5, 5}, {}, random);
    const auto run = [&](bool fused) {
      BatchNorm layer({.channels = 16});
      const Tensor x = values.clone().requires_grad_(), r = other.clone().requires_grad_();
      const Tensor y =
          fused ? layer.forward(layer.forward(x, {.relu = true}), {.residual = r, .relu = true})
                : relu(layer(relu(layer(x))) + r);
      y.backward(dy);
      return std::vector{y, x.grad(), r.grad(), layer.weight.grad(), layer.bias.grad()};
    };
    const auto a = run(true), b = run(false);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LT(relative_error(a[i], b[i]), 3e-6) << i;
  }
}

TEST(BatchNorm, FusedReluPassesTheGradientOfNaNAsReluDoes) {
  for (const bool training : {false, true})
    for (const bool with_residual : {false, true}) {
      const Tensor values = randn({4, 3, 5, 5}), other = randn({4, 3, 5, 5}),
                   dy = randn({4, 3, 5, 5});
      values.data<float>()[7] = NAN;  // in channel 0
      other.data<float>()[30] = NAN;  // in channel 1
      const auto run = [&](bool fused) {
        BatchNorm layer({.channels = 3});
        layer.train(training);
        const Tensor x = values.clone().requires_grad_(), r = other.clone().requires_grad_();
        const Tensor y =
            fused ? layer.forward(x, {.residual = with_residual ? r : Tensor(), .relu = true})
                  : relu(with_residual ? layer(x) + r : layer(x));
        y.backward(dy);
        return std::vector{x.grad(), with_residual ? r.grad() : x.grad(), layer.weight.grad(),
                           layer.bias.grad()};
      };
      const auto fused = run(true), separate = run(false);
      // The gradient of the residual is dy where the ReLU passes.
      if (with_residual) {
        EXPECT_EQ(to_vector(fused[1])[30], dy.data<float>()[30]);
      }
      for (std::size_t t = 0; t < fused.size(); ++t) {
        const auto a = to_vector(fused[t]), b = to_vector(separate[t]);
        for (std::size_t i = 0; i < a.size(); ++i)
          if (std::isnan(b[i])) EXPECT_TRUE(std::isnan(a[i])) << t << " " << i;
          else EXPECT_NEAR(a[i], b[i], 1e-4) << t << " " << i;
      }
    }
}

TEST(BatchNorm, FusedFormsRunTheHooks) {
  BatchNorm layer({.channels = 3});
  const Tensor x = randn({4, 3, 5}), r = randn({4, 3, 5});
  std::vector<const void*> seen;
  layer.add_forward_hook([&](nn::Layer& of, const Tensor& input, const Tensor& output) {
    EXPECT_EQ(&of, &layer);
    EXPECT_EQ(input.id(), x.id());
    seen.push_back(output.id());
    return Tensor();
  });
  const std::vector<Tensor> outputs{layer.forward(x, {.relu = true}),
                                    layer.forward(x, {.residual = r}),
                                    layer.forward(x, {.residual = r, .relu = true}),
                                    layer.forward(x, {.position_weights = ones({4})}), layer(x)};
  ASSERT_EQ(seen.size(), outputs.size()) << "once each";
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], outputs[i].id()) << i;
  layer.add_forward_hook(
      [](nn::Layer&, const Tensor&, const Tensor& output) { return output * 2; });
  EXPECT_EQ(to_vector(layer.forward(x, {.relu = true})), to_vector(outputs[0] * 2));
}

TEST(BatchNorm, DoesNotWriteOverGradientsThatOthersHold) {
  BatchNorm layer({.channels = 2});
  const Tensor x = randn({3, 2, 4}).requires_grad_(), dy = randn({3, 2, 4});
  const auto before = to_vector(dy);
  layer.forward(x, {.relu = true}).backward(dy);
  layer.forward(x, {.residual = x, .relu = true}).backward(dy);
  EXPECT_EQ(to_vector(dy), before);
}

// The gradient of x overwrites dy if nothing else holds dy, but not if dy is the gradient of the
// residual too.
TEST(BatchNorm, GradientsOfInputAndResidualDoNotShareMemory) {
  Generator random(19);
  for (const bool training : {true, false})
    for (const bool rectified : {false, true})
      for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        const Tensor values = randn({4, 3, 5, 5}, {float64}, random).contiguous(format),
                     other = randn({4, 3, 5, 5}, {float64}, random).contiguous(format);
        const auto run = [&](bool fused) {
          BatchNorm layer({.channels = 3, .dtype = float64});
          layer.train(training);
          const Tensor x = values.clone().requires_grad_(), r = other.clone().requires_grad_();
          const Tensor sum_of = fused ? Tensor() : layer(x) + r;
          const Tensor y = !fused      ? rectified ? relu(sum_of) : sum_of
                           : rectified ? layer.forward(x, {.residual = r, .relu = true})
                                       : layer.forward(x, {.residual = r});
          sum(y * y * y).backward();  // makes a new gradient of y, which nothing else holds
          return std::vector{x.grad(), r.grad(), layer.weight.grad(), layer.bias.grad()};
        };
        const auto got = run(true), expected = run(false);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_LT(relative_error(got[i], expected[i]), 1e-13)
              << i << " " << training << rectified << to_string(format);
      }
}

// The kernel of a masked gradient adds the gradients of two uses. An identity behind the layer lets
// the engine add them instead, which must give the same bits.
TEST(BatchNorm, GradientsOfTwoUsesAreAddedToTheBit) {
  Generator random(25);
  for (const DType dtype : {float32, float64, bfloat16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const int uses : {2, 3}) {
        SCOPED_TRACE(to_string(dtype) + to_string(format) + std::to_string(uses));
        std::vector<Tensor> of_use;
        for (int i = 0; i < uses + 2; ++i)
          of_use.push_back(randn({4, 20, 5, 5}, {float64}, random).to(dtype).contiguous(format));
        const auto run = [&](bool in_parts) {
          BatchNorm layer({.channels = 20, .dtype = dtype == float64 ? float64 : float32});
          const Tensor x = of_use[0].clone().requires_grad_(),
                       r = of_use[1].clone().requires_grad_();
          const Tensor y = layer.forward(x, {.residual = r, .relu = true});
          const Tensor z = in_parts ? y
                                    : autograd::record("identity", y.detach().clone(), {y},
                                                       [](const Tensor& g) { return g; });
          Tensor loss = sum(z * of_use[2]);
          for (int i = 1; i < uses; ++i) loss = loss + sum(z * of_use[2 + i]);
          loss.backward();
          std::vector<double> all;
          for (const Tensor& g : {x.grad(), r.grad(), layer.weight.grad(), layer.bias.grad()})
            for (const double value : to_vector(g)) all.push_back(value);
          return all;
        };
        EXPECT_EQ(run(true), run(false));
      }
}

TEST(BatchNorm, DoesNotKeepThePreActivation) {
  BatchNorm layer({.channels = 16});
  const Tensor x = randn({8, 16, 32, 32}).requires_grad_(),
               r = randn({8, 16, 32, 32}).requires_grad_();
  const std::size_t tensor_bytes = 8 * 16 * 32 * 32 * 4,
                    before = allocator(Device::cpu()).stats().live;
  const Tensor y = layer.forward(x, {.residual = r, .relu = true});
  EXPECT_LT(allocator(Device::cpu()).stats().live - before, tensor_bytes + 16384)
      << "only y itself";
}

TEST(BatchNorm, RunningStatisticsAndEvaluation) {
  Generator random(6);
  BatchNorm layer({.channels = 2, .momentum = 0.25, .dtype = float64});
  const Tensor x = randn({5, 2, 3}, {float64}, random) * 2 + 1;
  layer(x);
  const Tensor m = mean(x, {0, 2}), v = mean(square(x - mean(x, {0, 2}, true)), {0, 2});
  EXPECT_LT(relative_error(layer.running_mean, m * 0.25), 1e-14);
  EXPECT_LT(relative_error(layer.running_var, v * (15.0 / 14) * 0.25 + 0.75), 1e-14);
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 1);
  layer.eval();
  const auto before = to_vector(layer.running_mean);
  const Tensor y = layer(x);
  EXPECT_EQ(to_vector(layer.running_mean), before);
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 1);
  const Shape channel{1, 2, 1};
  EXPECT_LT(relative_error(y, (x - layer.running_mean.reshape(channel)) *
                                  rsqrt(layer.running_var.reshape(channel) + 1e-5)),
            1e-14);

  BatchNorm untracked({.channels = 2, .track_running_stats = false, .dtype = float64});
  untracked.eval();
  EXPECT_LT(relative_error(untracked(x), reference(x, untracked.weight, untracked.bias, 1e-5)),
            1e-12);
}

TEST(BatchNorm, AForwardIsAChangeOfTheRunningStatisticsInPlace) {
  nn::BatchNorm1d layer({.channels = 3, .pooled = true});
  const std::vector<Tensor> statistics{layer.running_mean, layer.running_var,
                                       layer.num_batches_tracked, layer.num_elements_tracked};
  const auto versions = [&] {
    std::vector<std::uint64_t> all;
    for (const Tensor& each : statistics) all.push_back(each.storage()->version());
    return all;
  };
  const auto before = versions();
  layer.eval();
  layer(randn({4, 3}));
  EXPECT_EQ(versions(), before) << "evaluation changes nothing";
  layer.train();
  layer(randn({4, 3}));
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_GT(versions()[i], before[i]) << i;
}

TEST(BatchNorm, CumulativeAndPooledAverages) {
  Generator random(7);
  BatchNorm cumulative({.channels = 2, .momentum = {}, .dtype = float64}),
      pooled({.channels = 2, .pooled = true, .dtype = float64});
  const Tensor a = randn({3, 2, 4}, {float64}, random), b = randn({9, 2, 4}, {float64}, random) + 3;
  for (const Tensor& x : {a, b}) cumulative(x), pooled(x);
  EXPECT_LT(relative_error(cumulative.running_mean, (mean(a, {0, 2}) + mean(b, {0, 2})) * 0.5),
            1e-14);
  const Tensor both = cat({a, b});
  EXPECT_LT(relative_error(pooled.running_mean, mean(both, {0, 2})), 1e-14);
  EXPECT_LT(relative_error(pooled.running_var,
                           sum(square(both - mean(both, {0, 2}, true)), {0, 2}) / 47.0),
            1e-13);
  EXPECT_EQ(pooled.num_elements_tracked.item<int>(), 48);
}

// Sums of weights are not integers, and the merged count is not rounded.
TEST(BatchNorm, PooledStatisticsMergeByTheSumsOfWeights) {
  Generator random(17);
  BatchNorm layer({.channels = 2, .pooled = true, .dtype = float64});
  std::vector<Tensor> xs, ws;
  for (int batch = 0; batch < 5; ++batch) {
    xs.push_back(randn({3, 2, 4}, {float64}, random) + batch);
    ws.push_back(rand({3, 4}, {float64}, random) * 0.5);
    layer.forward(xs.back(), {.position_weights = ws.back()});
  }
  const Tensor x = cat(xs), w = cat(ws).reshape({15, 1, 4});
  const double n = sum(w).item<double>();
  const Tensor m = sum(x * w, {0, 2}) / n,
               v = sum(square(x - m.reshape({1, 2, 1})) * w, {0, 2}) / (n - 1);
  EXPECT_NEAR(layer.num_elements_tracked.item<double>(), n, 1e-13);
  EXPECT_LT(relative_error(layer.running_mean, m), 1e-14);
  EXPECT_LT(relative_error(layer.running_var, v), 1e-13);
}

TEST(BatchNorm, ThePooledCountIsExactInEveryDtype) {
  BatchNorm layer({.channels = 2, .pooled = true});
  layer.num_elements_tracked.fill_(16777216);
  for (const DType dtype : {float32, bfloat16, float64, float32}) {
    layer.to(dtype);
    EXPECT_EQ(layer.num_elements_tracked.dtype(), float64);
    layer(randn({1, 2, 3}));
  }
  EXPECT_EQ(layer.num_elements_tracked.item<double>(), 16777228);
  EXPECT_EQ(layer.state_dict().back().first, "num_elements_tracked");
}

TEST(BatchNorm, TheFloorOfTheVarianceKeepsNaN) {
  const Tensor x = randn({4, 2, 3});
  x.data<float>()[0] = NAN;
  const auto y = to_vector(BatchNorm({.channels = 2, .eps = 0.1, .eps_is_floor = true})(x));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 3 % 2 == 0) << i;
}

// Evaluation applies the floor too, so that a model that was trained with a floor evaluates in the
// same way.
TEST(BatchNorm, EvaluationTakesTheFloorUnderTheRunningVariance) {
  BatchNorm layer({.channels = 3, .eps = 0.25, .eps_is_floor = true, .dtype = float64});
  for (std::int64_t c = 0; c < 3; ++c)
    layer.running_mean.data<double>()[c] = 1, layer.running_var.data<double>()[c] = c == 0   ? 4
                                                                                    : c == 1 ? 0.01
                                                                                             : 0;
  layer.eval();
  EXPECT_EQ(to_vector(layer(full({1, 3}, 3, {float64}))), (std::vector<double>{1, 4, 4}));
}

TEST(BatchNorm, MasksLeavePaddingOut) {
  Generator random(8);
  BatchNorm layer({.channels = 3, .dtype = float64}), plain({.channels = 3, .dtype = float64});
  const Tensor x = randn({4, 3, 6}, {float64}, random), mask = ones({4, 6});
  mask.slice(1, 4, 6).fill_(0);
  const Tensor y = layer.forward(x, {.position_weights = mask}), expected = plain(x.slice(2, 0, 4));
  EXPECT_LT(relative_error(y.slice(2, 0, 4), expected), 1e-13);
  EXPECT_LT(relative_error(layer.running_var, plain.running_var), 1e-13);
}

// Padding may hold NaN and infinity, which reach neither statistics nor parameters nor gradients.
TEST(BatchNorm, MasksLeaveNaNAndInfinityOut) {
  Generator random(15);
  for (const DType dtype : {float32, float64, bfloat16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const Shape& shape : {Shape{4, 3, 5, 7}, Shape{3, 40, 8, 8}, Shape{2, 3, 50, 60}})
        for (const bool relu : {false, true}) {
          const Tensor mask =
              gt(rand({shape[0], shape[2], shape[3]}, {float64}, random), 0.3).to(float64);
          mask.slice(0, 0, 1).fill_(0);  // masks the whole first sample
          const Tensor m4 = mask.reshape({shape[0], 1, shape[2], shape[3]}).expand(shape);
          const Tensor values = randn(shape, {float64}, random),
                       dy = (randn(shape, {float64}, random) * m4).to(dtype);
          const auto run = [&](double padding) {
            BatchNorm layer({.channels = shape[1]});
            const Tensor x = where(gt(m4, 0.5), values, full({}, padding, {float64}))
                                 .to(dtype)
                                 .contiguous(format)
                                 .requires_grad_();
            nn::BatchNormArgs args;
            args.weight = layer.weight, args.bias = layer.bias;
            args.running = {layer.running_mean, layer.running_var, layer.num_batches_tracked, {}};
            args.position_weights = mask;
            args.relu = relu;
            const Tensor y = nn::batch_norm(x, args);
            y.backward(dy.contiguous(format));
            return std::vector{to_vector(layer.running_mean), to_vector(layer.running_var),
                               to_vector(x.grad()), to_vector(layer.weight.grad()),
                               to_vector(layer.bias.grad())};
          };
          const auto expected = run(0);
          for (const double padding : {double{NAN}, double{INFINITY}, -double{INFINITY}})
            EXPECT_EQ(run(padding), expected);
          const auto dx = expected[2], inside = to_vector(m4);
          for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_TRUE(inside[i] > 0 || dx[i] == 0) << i;
        }
}

TEST(BatchNorm, RightAtLargeMeansAndSmallVariances) {
  Generator random(9);
  for (const auto& [std, shift] : {std::pair{1.0, 1e4}, {1e-6, 0.0}})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      BatchNorm layer({.channels = 8, .eps = 1e-16});
      const Tensor x =
          (randn({16, 8, 9, 9}, {float64}, random) * std + shift).to(float32).contiguous(format);
      const Tensor exact =
          reference(x.to(float64), ones({8}, {float64}), zeros({8}, {float64}), 1e-16);
      EXPECT_LT(relative_error(layer(x), exact), 3e-6) << std << " " << shift;
    }
}

TEST(BatchNorm, EmptyBatches) {
  BatchNorm layer({.channels = 3});
  const Tensor x = empty({0, 3, 4}).requires_grad_();
  const Tensor y = layer(x);
  EXPECT_EQ(y.shape(), x.shape());
  y.backward(empty({0, 3, 4}));
  EXPECT_EQ(x.grad().shape(), x.shape());
  EXPECT_EQ(to_vector(layer.weight.grad()), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
  EXPECT_EQ(to_vector(layer.running_var), (std::vector<double>{1, 1, 1}));
}

TEST(BatchNorm, RefusesBadOptions) {
  const auto make = [](BatchNorm::Options o) { BatchNorm layer(o); };
  EXPECT_THROW(make({.channels = 0}), ValueError);
  EXPECT_THROW(make({.channels = -3}), ValueError);
  for (const double eps : {-1e-5, double{NAN}, double{INFINITY}})
    EXPECT_THROW(make({.channels = 2, .eps = eps}), ValueError);
  for (const double m : {-0.1, 1.1, double{NAN}})
    EXPECT_THROW(make({.channels = 2, .momentum = m}), ValueError);
  EXPECT_THROW(make({.channels = 2, .dtype = bfloat16}), DTypeError);
  EXPECT_NO_THROW(make({.channels = 2, .eps = 0, .momentum = 0}));
}

TEST(BatchNorm, RefusesBadInputAndStaysAsItWas) {
  nn::BatchNorm2d layer({.channels = 3});
  EXPECT_THROW(layer(zeros({2, 4, 5, 5})), ShapeError);
  EXPECT_THROW(layer(zeros({2, 3, 5})), ShapeError);
  EXPECT_THROW(nn::BatchNorm1d({.channels = 3})(zeros({2, 3, 5, 5})), ShapeError);
  EXPECT_THROW(nn::BatchNorm3d({.channels = 3})(zeros({2, 3, 5, 5})), ShapeError);
  EXPECT_THROW(BatchNorm({.channels = 3})(zeros({3})), ShapeError);
  EXPECT_THROW(layer(zeros({2, 3, 5, 5}, {int64})), DTypeError);
  EXPECT_THROW(layer(zeros({2, 3, 5, 5}, {float16})), DTypeError);
  EXPECT_THROW(layer(zeros({1, 3, 1, 1})), ShapeError) << "one value per channel has no variance";
  EXPECT_THROW(layer.forward(zeros({2, 3, 5, 5}), {.residual = zeros({2, 3, 5, 1}), .relu = true}),
               ShapeError);
  EXPECT_THROW(layer.forward(zeros({2, 3, 5, 5}), {.position_weights = zeros({3})}), ShapeError);
  EXPECT_THROW(nn::batch_norm(zeros({2, 0, 3}), {}), ShapeError) << "there is no channel";
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
  EXPECT_EQ(to_vector(layer.running_var), (std::vector<double>{1, 1, 1}));
}

TEST(BatchNorm, RefusesTensorsThatDoNotFitTogether) {
  const Tensor x = randn({4, 3, 5});
  const auto good = [] {
    nn::BatchNormArgs args;
    args.weight = ones({3}), args.bias = zeros({3});
    args.running = {zeros({3}), ones({3}), zeros({}, {int64}), {}};
    return args;
  };
  const auto with = [&](auto change) {
    nn::BatchNormArgs args = good();
    change(args);
    return nn::batch_norm(x, args);
  };
  using Args = nn::BatchNormArgs;
  EXPECT_NO_THROW(with([](Args&) {}));
  EXPECT_THROW(with([](Args& a) { a.weight = ones({2}); }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.bias = zeros({1}); }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.running.mean = zeros({2}); }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.running.var = ones({2}); }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.running.var = ones({6}).slice(0, 0, 6, 2); }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.running.var = {}; }), ValueError);
  EXPECT_THROW(with([](Args& a) { a.running.var = ones({3}, {float64}); }), DTypeError);
  EXPECT_THROW(with([](Args& a) { a.weight = ones({3}, {bfloat16}); }), DTypeError);
  EXPECT_THROW(with([](Args& a) { a.bias = zeros({3}, {int64}); }), DTypeError);
  EXPECT_THROW(with([](Args& a) { a.running.batches = {}; }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.running.batches = zeros({}, {float32}); }), DTypeError);
  EXPECT_THROW(with([](Args& a) { a.tracking = kernels::Tracking::pooled; }), ShapeError);
  EXPECT_THROW(with([](Args& a) { a.running.var = a.running.mean; }), ValueError);
  EXPECT_THROW(with([](Args& a) { a.running.mean = a.weight; }), ValueError);
  EXPECT_THROW(with([&](Args& a) { a.running.mean = x.reshape(-1).slice(0, 1, 4); }), ValueError);
  for (const double eps : {-1e-5, double{NAN}, double{INFINITY}}) {
    EXPECT_THROW(with([&](Args& a) { a.eps.value = eps; }), ValueError);
    EXPECT_THROW(nn::layer_norm(x, {5}, {}, {}, eps), ValueError);
  }
  for (const double m : {-0.1, 1.1, double{NAN}})
    EXPECT_THROW(with([&](Args& a) { a.momentum = m; }), ValueError);
  for (const double w : {-1.0, double{NAN}, double{INFINITY}})
    EXPECT_THROW(with([&](Args& a) { a.position_weights = full({4}, w); }), ValueError);
  const Tensor strided = full({6}, 2).slice(0, 0, 6, 2);
  EXPECT_EQ(to_vector(with([&](Args& a) { a.weight = strided; })),
            to_vector(with([](Args& a) { a.weight = full({3}, 2); })));
}

TEST(BatchNorm, PositionWeightsMayNotChangeBeforeBackward) {
  BatchNorm layer({.channels = 3});
  const Tensor w = ones({4, 5});
  const Tensor y = layer.forward(randn({4, 3, 5}).requires_grad_(), {.position_weights = w});
  w.fill_(2);
  EXPECT_THROW(y.backward(ones({4, 3, 5})), Error);
}

TEST(BatchNorm, KeepsFloat32UnderBFloat16) {
  BatchNorm layer({.channels = 3});
  layer.to(bfloat16);
  EXPECT_EQ(layer.weight.dtype(), float32);
  EXPECT_EQ(layer.running_var.dtype(), float32);
  layer.to(float64);
  EXPECT_EQ(layer.weight.dtype(), float64);
  EXPECT_EQ(layer.num_batches_tracked.dtype(), int64);
}

TEST(BatchNorm, TwoForwardsBeforeOneBackward) {
  Generator random(11);
  BatchNorm layer({.channels = 3, .dtype = float64});
  const Tensor a = randn({4, 3}, {float64}, random).requires_grad_(),
               b = randn({5, 3}, {float64}, random).requires_grad_();
  const Tensor ya = layer(a), yb = layer(b);
  (sum(ya * ya * ya) + sum(yb * yb * yb)).backward();
  const auto da = to_vector(a.grad()), dw = to_vector(layer.weight.grad());
  a.set_grad({}), layer.zero_grad();
  const Tensor y1 = layer(a);
  sum(y1 * y1 * y1).backward();
  const Tensor y2 = layer(b);
  sum(y2 * y2 * y2).backward();
  EXPECT_EQ(to_vector(a.grad()), da);
  EXPECT_EQ(to_vector(layer.weight.grad()), dw);
}

}  // namespace
}  // namespace tutti
