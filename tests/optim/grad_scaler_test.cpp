// Tests of loss scaling: parameters change as if there were no scale, a step that overflowed
// changes no bit of parameters and optimizer state, and the scale follows the rule of
// torch.amp.GradScaler.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/matmul.h>
#include <tutti/kernels/kernels.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include "fixture.h"

#include <limits>
#include <memory>
#include <random>

namespace tutti {
namespace {

using namespace optim;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<std::unique_ptr<Optimizer>> methods(const std::vector<Tensor>& p) {
  std::vector<std::unique_ptr<Optimizer>> result;
  result.push_back(std::make_unique<SGD>(p, SGD::Options{.lr = 0.1}));
  result.push_back(
      std::make_unique<SGD>(p, SGD::Options{.lr = 0.1, .momentum = 0.9, .dampening = 0.3}));
  result.push_back(
      std::make_unique<SGD>(p, SGD::Options{.lr = 0.1, .momentum = 0.9, .nesterov = true}));
  result.push_back(std::make_unique<Adam>(p, Adam::Options{.lr = 0.1, .weight_decay = 0.01}));
  result.push_back(std::make_unique<AdamW>(p, AdamW::Options{.lr = 0.1}));
  result.push_back(std::make_unique<LARS>(p, LARS::Options{.lr = 0.1, .weight_decay = 0.01}));
  return result;
}

std::vector<std::vector<double>> values(const OptimizerState& state) {
  std::vector<std::vector<double>> result;
  for (const auto& [name, tensor] : state.tensors) result.push_back(to_vector(tensor));
  return result;
}

// A run in which random steps overflow, the first one among them, against a run without those
// steps.
TEST(GradScaler, AnOverflowLeavesNoTrace) {
  std::mt19937 random(1);
  for (std::size_t method = 0; method < 6; ++method)
    for (const double poison : {infinity, -infinity, std::nan("")}) {
      const auto p = start(), q = start();
      const auto scaled = std::move(methods(p)[method]), plain = std::move(methods(q)[method]);
      GradScaler scaler({.init_scale = 1024});  // a power of two: scaling is exact
      const std::int64_t steps = fixture("grad.0").size(0);
      for (std::int64_t step = 0; step < steps; ++step) {
        give_gradients(p, step);
        const bool overflows = step == 0 || random() % 3 == 0;
        const double scale = scaler.current_scale();
        for (const Tensor& parameter : p) parameter.set_grad((parameter.grad() * scale).detach());
        if (overflows) {  // anywhere in one of the gradients
          const Tensor flat = p[random() % 2].grad().flatten();
          flat.select(0, static_cast<std::int64_t>(random() % static_cast<unsigned>(flat.numel())))
              .fill_(poison);
        } else {
          give_gradients(q, step);
          plain->step();
        }
        scaler.step(*scaled);
        scaler.update();
        for (std::size_t k = 0; k < p.size(); ++k)
          ASSERT_EQ(to_vector(p[k]), to_vector(q[k])) << method << " at " << step;
        ASSERT_EQ(scaler.current_scale(), overflows ? scale / 2 : scale);
        ASSERT_EQ(values(scaled->state_dict()), values(plain->state_dict()))
            << method << " at " << step;
      }
      // A step without a scaler still does not count what was skipped.
      give_gradients(p, 0);
      give_gradients(q, 0);
      scaled->step();
      plain->step();
      for (std::size_t k = 0; k < p.size(); ++k) EXPECT_EQ(to_vector(p[k]), to_vector(q[k]));
    }
}

TEST(GradScaler, TheScaleGrowsAndBacksOff) {
  const Tensor x = ones({3}).requires_grad_();
  SGD sgd({x}, {.lr = 0});
  GradScaler scaler(
      {.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  const auto step = [&](double gradient) {
    x.set_grad(full({3}, gradient));
    scaler.step(sgd);
    scaler.update();
    return scaler.current_scale();
  };
  EXPECT_EQ(step(1), 8);
  EXPECT_EQ(step(1), 8);
  EXPECT_EQ(step(infinity), 2);  // The count of good steps starts again.
  EXPECT_EQ(step(1), 2);
  EXPECT_EQ(step(1), 2);
  EXPECT_EQ(step(1), 8);
  EXPECT_EQ(step(1), 8);
  // The scale never grows to infinity.
  GradScaler large({.init_scale = 0x1p126, .growth_interval = 1});
  for (int i = 0; i < 4; ++i) {
    x.set_grad(ones({3}));
    large.step(sgd);
    large.update();
    EXPECT_EQ(large.current_scale(), 0x1p127);
  }
}

TEST(GradScaler, ScalesTheLossAndUnscalesForClipping) {
  const Tensor x = randn({50}).requires_grad_(), y = x.detach().clone().requires_grad_();
  SGD a({x}, {.lr = 0.5}), b({y}, {.lr = 0.5});
  GradScaler scaler({.init_scale = 4096});
  const Tensor loss = sum(square(x)), scaled = scaler.scale(loss);
  EXPECT_EQ(scaled.item<float>(), loss.item<float>() * 4096);
  scaled.backward();
  scaler.unscale_(a);
  EXPECT_EQ(to_vector(x.grad()), to_vector((x.detach() * 2.0)));
  EXPECT_THROW(scaler.unscale_(a), Error);
  clip_grad_norm({x}, 0.25);
  scaler.step(a);
  EXPECT_THROW(scaler.step(a), Error);
  scaler.update();
  EXPECT_THROW(scaler.update(), Error);
  sum(square(y)).backward();
  clip_grad_norm({y}, 0.25);
  b.step();
  EXPECT_EQ(to_vector(x), to_vector(y));
}

TEST(GradScaler, OptimizersAreJudgedApartAndTheScaleTogether) {
  const Tensor x = ones({4}).requires_grad_(), y = ones({4}).requires_grad_();
  SGD a({x}, {.lr = 1}), b({y}, {.lr = 1});
  GradScaler scaler({.init_scale = 2});
  x.set_grad(full({4}, infinity));
  y.set_grad(full({4}, 1));
  scaler.step(a);
  scaler.step(b);
  scaler.update();
  EXPECT_EQ(to_vector(x), std::vector<double>(4, 1));
  EXPECT_EQ(to_vector(y), std::vector<double>(4, 0.5));
  EXPECT_EQ(scaler.current_scale(), 1);
}

// In whatever order the optimizers come, and they are stored.
TEST(GradScaler, TheScaleBacksOffWhicheverOptimizerOverflowed) {
  const Tensor x = ones({4}).requires_grad_(), y = ones({4}).requires_grad_();
  SGD a({x}, {.lr = 1}), b({y}, {.lr = 1});
  for (const Tensor& bad : {x, y})
    for (const bool a_first : {true, false}) {
      GradScaler scaler({.init_scale = 2});
      for (const Tensor& p : {x, y}) p.set_grad(full({4}, p.is_same(bad) ? infinity : 1));
      for (SGD* optimizer : a_first ? std::array{&a, &b} : std::array{&b, &a})
        scaler.step(*optimizer);
      scaler.update();
      EXPECT_EQ(scaler.current_scale(), 1);
    }
}

TEST(GradScaler, UnscalingCountsAsAChangeInPlace) {
  const Tensor x = ones({4}).requires_grad_();
  SGD sgd({x}, {.lr = 1});
  GradScaler scaler({.init_scale = 2});
  x.set_grad(ones({4}));
  const auto before = x.grad().storage()->version();
  scaler.unscale_(sgd);
  EXPECT_GT(x.grad().storage()->version(), before);
}

TEST(GradScaler, SavesAndLoads) {
  const Tensor x = ones({2}).requires_grad_();
  SGD sgd({x}, {.lr = 0.1});
  GradScaler first({.init_scale = 32, .growth_factor = 3, .growth_interval = 2}), second;
  const auto step = [&](GradScaler& scaler) {
    x.set_grad(ones({2}));
    scaler.step(sgd);
    scaler.update();
  };
  step(first);
  StateDict state = first.state_dict();
  second.load_state_dict(state);
  step(first);
  step(second);
  EXPECT_EQ(first.current_scale(), 96);
  EXPECT_EQ(second.current_scale(), 96);
  for (std::size_t i = 0; i < state.size(); ++i) {
    StateDict missing = state, wrong = state;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    wrong[i].second = scalar(-1, {.dtype = float64});
    EXPECT_THROW(second.load_state_dict(missing), CheckpointError);
    EXPECT_THROW(second.load_state_dict(wrong), CheckpointError) << state[i].first;
    for (const Tensor& odd : {Tensor(), full({1}, 2, {.dtype = float64}), scalar(2)}) {
      wrong[i].second = odd;
      EXPECT_THROW(second.load_state_dict(wrong), CheckpointError) << state[i].first;
    }
  }
  // float32 would round this scale to 0, and a count has no half.
  for (const auto& [index, value] : {std::pair(0, 1e-60), {1, 0.5}, {4, 2.5}}) {
    StateDict odd = state;
    odd[static_cast<std::size_t>(index)].second = scalar(value, {.dtype = float64});
    EXPECT_THROW(second.load_state_dict(odd), CheckpointError) << value;
  }
  for (const char* name : {"scale", "unknown"}) {
    StateDict more = state;
    more.emplace_back(name, scalar(2, {.dtype = float64}));
    EXPECT_THROW(second.load_state_dict(more), CheckpointError) << name;
  }
  EXPECT_EQ(second.current_scale(), 96);
}

TEST(GradScaler, InvalidArguments) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), ValueError);
  EXPECT_THROW(GradScaler({.init_scale = infinity}), ValueError);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), ValueError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), ValueError);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), ValueError);
  GradScaler scaler;
  EXPECT_THROW((void)scaler.scale(arange(1)), DTypeError);
  const Tensor p = ones({3}).to(float16).requires_grad_();
  SGD sgd({p}, {.lr = 1});
  p.set_grad(ones({3}).to(float16));
  EXPECT_THROW(scaler.step(sgd), DTypeError);
  EXPECT_THROW(sgd.step(zeros({2})), ValueError);
  EXPECT_EQ(to_vector(p), std::vector<double>(3, 1));
}

// The kernel finds one bad element anywhere and divides every element, for many sizes and dtypes.
TEST(GradScaler, UnscaleKernel) {
  std::mt19937 random(1);
  const auto& table = kernels::on(Device::cpu()).optimizer;
  for (const DType dtype : {float32, float64, bfloat16})
    for (const std::int64_t size : {0, 1, 7, 1000, 40000}) {
      const Tensor a = randn({size}, {.dtype = dtype}), b = randn({5}, {.dtype = dtype});
      const std::vector<double> before = to_vector(a);
      const Tensor found = zeros({});
      table.unscale(std::vector{a, b}, scalar(4), found);
      EXPECT_EQ(found.item<float>(), 0);
      const std::vector<double> after = to_vector(a);
      for (std::size_t i = 0; i < before.size(); ++i) ASSERT_EQ(after[i], before[i] / 4);
      (size ? a : b)
          .select(0, size ? static_cast<std::int64_t>(random() % static_cast<unsigned>(size)) : 2)
          .fill_(-infinity);
      table.unscale(std::vector{b, a}, scalar(2), found);
      EXPECT_EQ(found.item<float>(), 1);
      table.unscale(std::vector{ones({3})}, scalar(2), found);  // The verdict stays.
      EXPECT_EQ(found.item<float>(), 1);
    }
}

// Mixed precision as a user writes it: float32 parameters and 16-bit products.
TEST(GradScaler, WithAutocast) {
  const Tensor w = randn({8, 8}).requires_grad_();
  SGD sgd({w}, {.lr = 0.1});
  GradScaler scaler;
  {
    const Autocast autocast(float16);
    EXPECT_THROW(matmul(randn({2, 8}), w), DTypeError);
  }
  const Autocast autocast(bfloat16);
  const std::vector<double> before = to_vector(w);
  scaler.scale(sum(matmul(randn({2, 8}), w).to(float32))).backward();
  scaler.step(sgd);
  scaler.update();
  EXPECT_NE(to_vector(w), before);
}

}  // namespace
}  // namespace tutti
