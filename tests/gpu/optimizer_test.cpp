// Tests that compare the optimizers' kernels on a device with those of the CPU: lists that are
// longer than one launch takes, empty tensors, several dtypes, skipped updates, and the scalars of
// a replay. tests/kernels/optimizer_test.cpp compares single kernels with formulas in float64.
#include "../kernels/compare.h"
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/kernels/kernels.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using kernels::FusedUpdate;
using test::test_device;

struct Lists {
  std::vector<FusedUpdate> here, there;
};

Tensor moved(const Tensor& t) { return t.defined() ? t.to(test_device()) : Tensor(); }

Lists updates(Generator& random, int states, bool overflow) {
  Lists lists;
  for (int i = 0; i < 100; ++i) {
    const DType dtype = std::vector{float32, bfloat16, float64}[static_cast<std::size_t>(i % 3)],
                state = accumulate_dtype(dtype);
    const std::int64_t n = i == 7 ? 0 : i == 8 ? 40000 : 1 + random.below(50);
    const auto values = [&](DType d) { return randn({n}, {float64}, random).to(d); };
    FusedUpdate u{.parameter = values(dtype),
                  .gradient = values(dtype),
                  .states = {values(state)},
                  .step = 1 + i % 4};
    for (int k = 1; k < states; ++k) u.states.push_back(full({n}, 0.5, {state}));
    if (i % 2 == 0)
      u.found_inf = full({1}, overflow ? 1 : 0), u.skipped = full({1}, i % 4 == 3 ? 1 : 0);
    lists.here.push_back(u);
    FusedUpdate& there = lists.there.emplace_back(u);
    for (Tensor* t : {&there.parameter, &there.gradient, &there.found_inf, &there.skipped})
      *t = moved(*t);
    for (Tensor& t : there.states) t = moved(t);
  }
  return lists;
}

void expect_same(const Tensor& there, const Tensor& here, double tolerance) {
  if (!here.defined()) return;
  EXPECT_LE(test::relative_error(there, here), tolerance);
}

void expect_same(const Lists& lists) {
  for (std::size_t i = 0; i < lists.here.size(); ++i) {
    SCOPED_TRACE(i);
    const FusedUpdate &a = lists.there[i], &b = lists.here[i];
    const DType dtype = b.parameter.dtype();
    expect_same(a.parameter, b.parameter,
                dtype == float64   ? 1e-14
                : dtype == float32 ? 1e-6
                                   : 4e-3);
    for (std::size_t k = 0; k < b.states.size(); ++k)
      expect_same(a.states[k], b.states[k], dtype == float64 ? 1e-14 : 1e-6);
    expect_same(a.skipped, b.skipped, 0);
  }
}

// Returns the numbers that a replay reads on the device, and overwrites those given at the capture
// with wrong ones.
Tensor replay_scalars(std::vector<double> numbers, std::vector<FusedUpdate>& updates) {
  for (FusedUpdate& u : updates) {
    numbers.push_back(static_cast<double>(u.step));
    u.step = 1000;
  }
  return tensor(numbers, {float64}).to(test_device());
}

TEST(Optimizer, StepsAreTheCpus) {
  Generator random(1);
  const auto &cpu = kernels::on(Device::cpu()).optimizer,
             &device = kernels::on(test_device()).optimizer;
  for (int run = 0; run < 4; ++run) {
    const bool overflow = run % 2, scalars = run / 2;
    for (const bool nesterov : {false, true}) {
      Lists lists = updates(random, 1, overflow);
      const kernels::SgdStep step{0.1, 0.9, nesterov ? 0.0 : 0.2, 0.01, nesterov};
      cpu.sgd(step, lists.here, nullptr);
      const std::vector<double> numbers{step.lr, step.momentum, step.dampening, step.weight_decay,
                                        nesterov ? 1.0 : 0.0};
      if (scalars)
        device.sgd({9, 9, 9, 9, !nesterov}, lists.there,
                   replay_scalars(numbers, lists.there).data<double>());
      else device.sgd(step, lists.there, nullptr);
      expect_same(lists);
    }
    for (const bool amsgrad : {false, true}) {
      const bool decoupled = amsgrad;
      Lists lists = updates(random, amsgrad ? 3 : 2, overflow);
      const kernels::AdamStep step{0.01, 0.9, 0.999, 1e-8, 0.1, amsgrad, decoupled};
      cpu.adam(step, lists.here, nullptr);
      const std::vector<double> numbers{step.lr,  step.beta1,        step.beta2,
                                        step.eps, step.weight_decay, amsgrad ? 1.0 : 0.0};
      if (scalars)
        device.adam({9, 9, 9, 9, 9, amsgrad, decoupled}, lists.there,
                    replay_scalars(numbers, lists.there).data<double>());
      else device.adam(step, lists.there, nullptr);
      expect_same(lists);
    }
    Lists lists = updates(random, 1, overflow);
    const auto n = static_cast<std::int64_t>(lists.here.size());
    const Tensor squares = rand({2 * n}, {float64}, random);
    const kernels::LarsStep step{0.1, 0.9, 0.01, 0.001, 1e-9, true};
    cpu.lars(step, lists.here, squares, nullptr);
    const Tensor there = squares.to(test_device());
    const std::vector<double> numbers{
        step.lr, step.momentum, step.weight_decay, step.trust_coefficient, step.eps, 1};
    if (scalars)
      device.lars({9, 9, 9, 9, 9, false}, lists.there, there,
                  replay_scalars(numbers, lists.there).data<double>());
    else device.lars(step, lists.there, there, nullptr);
    expect_same(lists);
  }
}

TEST(Optimizer, NormsClippingAndUnscalingAreTheCpus) {
  Generator random(2);
  const auto &cpu = kernels::on(Device::cpu()).optimizer,
             &device = kernels::on(test_device()).optimizer;
  for (const double max_norm : {1.0, 1e6}) {
    const Lists lists = updates(random, 1, false);
    std::vector<Tensor> here, there;
    for (const auto& u : lists.here) here.push_back(u.gradient);
    for (const auto& u : lists.there) there.push_back(u.gradient);
    const auto n = static_cast<std::int64_t>(here.size());
    const Tensor a = full({n}, NAN, {float64}), b = moved(a), norm = full({1}, NAN, {float64}),
                 device_norm = moved(norm);
    cpu.sums_of_squares(here, a);
    device.sums_of_squares(there, b);
    expect_same(b, a, 1e-14);
    cpu.clip(here, a, max_norm, norm);
    device.clip(there, b, max_norm, device_norm);
    expect_same(device_norm, norm, 1e-14);
    expect_same(lists.there[0].gradient, here[0], 1e-7);
    cpu.clip_values(here, 0.25);
    device.clip_values(there, 0.25);
    for (std::size_t i = 0; i < here.size(); ++i) expect_same(there[i], here[i], 1e-6);
    const Tensor scale = full({1}, 1024), found = zeros({1}), device_found = moved(found);
    device.unscale(there, moved(scale), device_found);
    EXPECT_EQ(device_found.item<float>(), 0);
    cpu.unscale(here, scale, found);
    for (std::size_t i = 0; i < here.size(); ++i)
      expect_same(there[i], here[i], here[i].dtype() == bfloat16 ? 4e-3 : 1e-6);
    there[3].copy_(full(there[3].shape(), INFINITY, {there[3].dtype()}).to(test_device()));
    device.unscale(there, moved(scale), device_found);
    EXPECT_EQ(device_found.item<float>(), 1);
  }
}

}  // namespace
}  // namespace tutti
