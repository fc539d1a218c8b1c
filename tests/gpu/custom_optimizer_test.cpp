// Tests of optimizers that are written in tensor arithmetic, on a device: a step whose gradients
// overflowed is skipped without waiting for the host, and a replay throws where a graph has frozen
// an option that has changed. graph_step_test.cpp compares captured steps with others.
#include "../distributed/messages.h"
#include "../optim/amsgrad.h"
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::custom_optimizer_test {
namespace {

using test::expect_contains;
using test::message_of;
using test::test_device;

std::vector<Tensor> parameters(DType dtype) {
  Generator random(3);
  std::vector<Tensor> result;
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{2, 3, 4, 5}})
    result.push_back(
        randn(shape, {float64}, random).to(dtype).to(test_device()).detach().requires_grad_());
  return result;
}

void give_gradients(const std::vector<Tensor>& parameters, int step) {
  Generator random(static_cast<std::uint64_t>(100 + step));
  for (const Tensor& p : parameters)
    p.set_grad(randn(p.shape(), {float64}, random).to(p.dtype()).to(p.device()));
}

// Compares a run in which some steps overflow, the first one among them, with a run without these
// steps.
TEST(CustomOptimizer, TheDeviceSkipsWhatOverflowed) {
  for (const DType dtype : {float32, float64, bfloat16, float16}) {
    const auto p = parameters(dtype), q = parameters(dtype);
    Amsgrad with(p, {.lr = 0.01}), without(q, {.lr = 0.01});
    const Tensor found_inf = zeros({1}, {.device = test_device()});
    for (int step = 0; step < 8; ++step) {
      const bool overflows = step % 3 == 0;
      give_gradients(p, step);
      if (overflows) p[1].grad().fill_(step == 3 ? NAN : INFINITY);
      found_inf.fill_(overflows ? 1 : 0);
      const std::int64_t waits = cuda::synchronizations();
      with.step(found_inf);
      EXPECT_EQ(cuda::synchronizations(), waits);
      give_gradients(q, step);
      if (!overflows) without.step();
      for (std::size_t k = 0; k < p.size(); ++k)
        EXPECT_EQ(to_vector(p[k]), to_vector(q[k])) << to_string(dtype) << ", step " << step;
    }
    const auto a = with.state_dict().tensors, b = without.state_dict().tensors;
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(to_vector(a[i].second), to_vector(b[i].second)) << a[i].first;
  }
}

// Reads the learning rate on the host.
struct FrozenOptions {
  double lr = 0.5;
  double momentum = 0;
};
class Frozen : public optim::OptimizerWith<FrozenOptions> {
 public:
  explicit Frozen(std::vector<Tensor> parameters)
      : OptimizerWith(
            {.name = "Frozen", .options = {{"lr", &Options::lr}, {"momentum", &Options::momentum}}},
            {Group{std::move(parameters), {}}}) {}

 protected:
  void update_one(const optim::ParameterUpdate& u) override {
    u.parameter.add_(option(&Options::momentum, u) + u.gradient, -options(u.group).lr);
  }
};

TEST(CustomOptimizer, AReplayRefusesAnOptionThatTheGraphHasFrozen) {
  const Tensor p = ones({5}, {.device = test_device()}).requires_grad_();
  Frozen frozen({p});
  p.set_grad(ones({5}, {.device = test_device()}));
  frozen.step();
  cuda::Graph graph(test_device(), [&] { frozen.step(); });
  EXPECT_EQ(to_vector(p), std::vector<double>(5, 0.5)) << "nothing has changed";
  frozen.set_momentum(3);  // It is read on the device.
  graph.replay();
  EXPECT_EQ(to_vector(p), std::vector<double>(5, -1.5));
  frozen.set_learning_rate(0.25);
  expect_contains(message_of<DeviceError>([&] { graph.replay(); }),
                  {"Frozen", "'lr' was 0.5", "now 0.25", "capture the step again", "option("});
  EXPECT_EQ(to_vector(p), std::vector<double>(5, -1.5));
  EXPECT_EQ(frozen.state_dict().tensors.front().second.select(0, 0).item<int>(), 2);
  frozen.set_learning_rate(0.5);
  graph.replay();
  EXPECT_EQ(to_vector(p), std::vector<double>(5, -3.5));
}

}  // namespace
}  // namespace tutti::custom_optimizer_test
