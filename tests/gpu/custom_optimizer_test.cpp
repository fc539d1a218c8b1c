// Tests of optimizers that are written in tensor arithmetic, on a device: a step whose gradients
// overflowed is skipped without waiting for the host, and capturing a step that a graph would
// freeze throws.
#include "../distributed/messages.h"
#include "../optim/amsgrad.h"
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>

#include <gtest/gtest.h>

namespace tutti {
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

TEST(CustomOptimizer, AGraphIsRefusedAndNothingChanges) {
  const auto p = parameters(float32);
  Amsgrad amsgrad(p, {.lr = 0.01});
  give_gradients(p, 0);
  amsgrad.step();
  const auto before = to_vector(p[2]);
  expect_contains(message_of<DeviceError>(
                      [&] { const cuda::Graph graph(test_device(), [&] { amsgrad.step(); }); }),
                  {"Amsgrad", "update_one()", "leave step() out of the graph"});
  EXPECT_EQ(to_vector(p[2]), before);
  EXPECT_EQ(amsgrad.state_dict().tensors.front().second.select(0, 0).item<int>(), 1);
}

}  // namespace
}  // namespace tutti
