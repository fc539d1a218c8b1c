// Tests that every family of operations takes denormal numbers for 0 on all of its threads and
// leaves the caller's floating-point control as it was, also where it throws.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/core/denormals.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/functional/conv.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/functional/pooling.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/adam.h>

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

namespace tutti {
namespace {

using detail::DenormalScope;

class Denormals : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DenormalScope::bits == 0) GTEST_SKIP() << "this processor's register is not known";
    set_num_threads(2);
  }
  ~Denormals() override {
    set_num_threads(before_);
    set_flush_denormals(true);
  }
  int before_ = num_threads();
};

constexpr float tiny = 1e-40f;
Tensor tinies(const Shape& shape) { return full(shape, double{tiny}); }

std::int64_t count_nonzero(const Tensor& x) {
  std::int64_t count = 0;
  for (const double value : to_vector(x.detach())) count += value != 0;
  return count;
}

// Results that would be denormal numbers.
std::vector<std::pair<const char*, std::function<Tensor()>>> families() {
  const nn::ConvOptions same{.stride = {1, 1}, .padding = {1, 1}};
  return {
      {"elementwise",
       [] {
         return tinies({300, 1000}) * 2;
       }},
      {"axpy",
       [] {
         const Tensor y = zeros({300'000});
         return y.add_(tinies({300'000}));
       }},
      {"sum",
       [] {
         return sum(tinies({4000, 20}), {1});
       }},
      {"small product",
       [] {
         return matmul(tinies({8, 8}), ones({8, 8}));
       }},
      {"product",
       [] {
         return matmul(tinies({200, 300}), ones({300, 200}));
       }},
      {"convolution",
       [=] {
         return nn::convolution(tinies({4, 16, 20, 20}), ones({32, 16, 3, 3}), {}, same);
       }},
      {"average pooling",
       [] {
         return nn::avg_pool(tinies({2, 8, 32, 32}), {.kernel = {2, 2}, .stride = {2, 2}});
       }},
  };
}

TEST_F(Denormals, AreZeroInOperations) {
  for (const auto& [name, compute] : families()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(count_nonzero(compute()), 0);
    set_flush_denormals(false);
    const Tensor kept = compute();
    EXPECT_EQ(count_nonzero(kept), kept.numel());
    set_flush_denormals(true);
    EXPECT_EQ(count_nonzero(compute()), 0);
  }
}

// The C library looks at the bits of its arguments.
TEST_F(Denormals, AreZeroForEveryFunction) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {float32, float64}) {
    const double smallest = dtype == float32 ? 1.1e-38 : 2.2e-308;
    for (const double sign : {1.0, -1.0}) {
      const Tensor x = full({5}, sign * smallest, {.dtype = dtype});
      const auto expect = [&](const Tensor& result, double expected) {
        EXPECT_EQ(to_vector(result)[4], expected) << to_string(dtype) << " " << sign;
      };
      expect(log(x), -infinity);
      expect(sqrt(x), 0);
      expect(pow(x, 0.5), 0);
      expect(pow(x, 3), 0);
      expect(pow(abs(x), -0.3), infinity);
      expect(exp(x), 1);
      expect(cos(x), 1);
      for (const Tensor& result : {sin(x), tanh(x), tutti::sign(x)}) expect(result, 0);
    }
  }
  set_flush_denormals(false);
  EXPECT_NEAR(log(full({1}, 1.1e-38)).item<float>(), -87.403, 1e-3);
  EXPECT_NE(pow(full({1}, 1.1e-38), 0.5).item<float>(), 0);
}

TEST_F(Denormals, AreKeptWhereNothingIsComputed) {
  const Tensor x = tinies({300'000});
  EXPECT_EQ(count_nonzero(x), x.numel());
  EXPECT_EQ(count_nonzero(x.clone()), x.numel());
  EXPECT_EQ(count_nonzero(x.to(float64)), x.numel());
  EXPECT_EQ(count_nonzero(gt(x, 0)), x.numel());
  EXPECT_EQ(count_nonzero(max(x)), 1);
  EXPECT_EQ(count_nonzero(minimum(x, ones({300'000}))), x.numel());
}

// A training step with a loss, and calls that throw before and while they compute.
void use_everything() {
  for (const auto& [name, compute] : families()) compute();
  nn::ResNet net({.depth = 20, .classes = 3});
  optim::Adam adam(net.parameters(), {.lr = 0.1});
  nn::cross_entropy(net(rand({2, 3, 32, 32})), zeros({2}, {.dtype = int64})).backward();
  adam.step();
  EXPECT_THROW(matmul(rand({2, 3}), rand({2, 3})), Error);
  EXPECT_THROW(gather(rand({2, 3}), 0, full({2, 3}, 9, {.dtype = int64})), Error);
  EXPECT_THROW(nn::cross_entropy(rand({2, 3}), full({2}, 5, {.dtype = int64})), Error);
  distributed::run_ranks(
      2, [](const distributed::ProcessGroup& group) { group.all_reduce(rand({1000})).wait(); });
}

TEST_F(Denormals, TheCallersRegisterStays) {
  constexpr DenormalScope::Register control = ~DenormalScope::Register{0x3f};  // not what x86 notes
  for (const bool flush : {true, false})
    for (const bool flushes_before : {false, true}) {
      set_flush_denormals(flush);
      const DenormalScope caller(flushes_before);
      const auto before = DenormalScope::read() & control;
      use_everything();
      EXPECT_EQ(DenormalScope::read() & control, before);
    }
}

// A moment of a parameter without a gradient decays until it is denormal.
TEST_F(Denormals, OfAnOptimizersStateBecomeZero) {
  Tensor w = zeros({1000}).requires_grad_();
  optim::Adam adam({w}, {.lr = 0.1, .beta1 = 0.1, .beta2 = 0.1});
  sum(w * 1e-10).backward();
  for (int step = 0; step < 60; ++step, w.grad().zero_()) adam.step();
  for (const auto& [name, state] : adam.state_dict().tensors) {
    if (state.dtype() != float32) continue;
    for (const double value : to_vector(state))
      EXPECT_TRUE(value == 0 || std::abs(value) >= std::numeric_limits<float>::min()) << name;
  }
}

}  // namespace
}  // namespace tutti
