// Tests of recomputation: the gradients are the same, less memory is saved, random draws are
// repeated, and the tape is loaded.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/matmul.h>
#include <tutti/autograd/recompute.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/dropout.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

TEST(Recompute, GivesTheSameGradientsToInputsAndParameters) {
  Generator generator(1);
  const auto leaf = [&] { return randn({3, 4}, {.dtype = float64}, generator).requires_grad_(); };
  const Tensor x = leaf(), w = leaf(), unused = leaf();
  const auto fn = [&](const std::vector<Tensor>& in) { return tanh(in[0] * w) * sigmoid(in[0]); };
  sum(square(fn({x, unused}))).backward();
  const Tensor dx = x.grad(), dw = w.grad();
  x.set_grad({});
  w.set_grad({});
  const Tensor y = recompute(fn, {x, unused});
  EXPECT_EQ(to_vector(y), to_vector(fn({x, unused})));
  sum(square(y)).backward();
  EXPECT_EQ(to_vector(x.grad()), to_vector(dx));
  EXPECT_EQ(to_vector(w.grad()), to_vector(dw));
  EXPECT_FALSE(unused.grad().defined());
}

TEST(Recompute, ReachesParametersWhereNoInputNeedsAGradient) {
  const Tensor x = ones({2}), w = full({2}, 3).requires_grad_();
  sum(recompute([&](const std::vector<Tensor>& in) { return in[0] * w; }, {x})).backward();
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 1}));
}

TEST(Recompute, RepeatsRandomDrawsAndLeavesTheGeneratorWhereItWas) {
  manual_seed(7);
  const Tensor x = ones({1000}).requires_grad_();
  const Tensor y =
      recompute([](const std::vector<Tensor>& in) { return nn::dropout(in[0], 0.5, true); }, {x});
  const Generator::State after = default_generator().state();
  default_generator().next();  // the rest of the model draws numbers, too
  const Generator::State moved = default_generator().state();
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), to_vector(y))
      << "the mask of the second run differs from the first";
  EXPECT_NE(after, moved);
  EXPECT_EQ(default_generator().state(), moved);
}

TEST(Recompute, SavesOnlyItsInputs) {
  const Tensor x = ones({10000}).requires_grad_();
  const auto deep = [](const std::vector<Tensor>& in) {
    Tensor y = in[0];
    for (int i = 0; i < 20; ++i) y = tanh(y);
    return y;
  };
  const std::size_t before = allocator(Device::cpu()).stats().live;
  const Tensor plain = deep({x});
  const std::size_t with_plain = allocator(Device::cpu()).stats().live - before;
  const Tensor thin = recompute(deep, {x});
  const std::size_t with_thin = allocator(Device::cpu()).stats().live - before - with_plain;
  EXPECT_GE(with_plain, 20 * 40000u);
  EXPECT_LE(with_thin, 3 * 40000u);
}

TEST(Recompute, TapeIsSavedInTheFirstRunAndLoadedInTheSecond) {
  int computed = 0;
  // This operation has a side effect that must happen once, so it saves its factor on the tape.
  const auto once = [&](const Tensor& x) {
    auto* tape = autograd::RecomputeTape::current();
    Tensor factor;
    if (tape && tape->is_recomputing()) {
      factor = tape->load("once")[0];
    } else {
      factor = full({}, ++computed);
      if (tape) tape->save("once", {factor});
    }
    return x * factor;
  };
  const Tensor x = ones({2}).requires_grad_();
  const Tensor y = recompute([&](const std::vector<Tensor>& in) { return once(once(in[0])); }, {x});
  EXPECT_EQ(computed, 2);
  EXPECT_EQ(autograd::RecomputeTape::current(), nullptr);
  sum(y).backward();
  EXPECT_EQ(computed, 2);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 2}));
  once(x);
  EXPECT_EQ(computed, 3);
}

TEST(Recompute, TapeKnowsWhoseEntryItIs) {
  const Tensor x = ones({2}).requires_grad_();
  int run = 0;
  const Tensor y = recompute(
      [&](const std::vector<Tensor>& in) {
        auto* tape = autograd::RecomputeTape::current();
        if (++run == 1) tape->save("first", {ones({})});
        else tape->load("second");
        return in[0] * 2;
      },
      {x});
  EXPECT_THROW(sum(y).backward(), Error);
  EXPECT_EQ(run, 2);
}

TEST(Recompute, NestsAndComputesPlainlyUnderNoGrad) {
  const Tensor x = full({3}, 0.5).requires_grad_();
  const auto inner = [](const std::vector<Tensor>& in) { return exp(in[0]); };
  const auto outer = [&](const std::vector<Tensor>& in) { return square(recompute(inner, in)); };
  sum(recompute(outer, {x})).backward();
  for (const double g : to_vector(x.grad())) EXPECT_NEAR(g, 2 * std::exp(1.0), 1e-5);
  const NoGrad no_grad;
  EXPECT_FALSE(recompute(outer, {x}).requires_grad());
}

TEST(Recompute, SecondRunCastsAsTheFirst) {
  Generator generator(3);
  const Tensor x = randn({4, 8}, {}, generator), w = randn({8, 5}, {}, generator).requires_grad_();
  std::vector<DType> dtypes;
  const auto fn = [&](const std::vector<Tensor>& in) {
    const Tensor y = matmul(in[0], w);
    dtypes.push_back(y.dtype());
    return y;
  };
  Tensor y;
  {
    const Autocast autocast(bfloat16);
    y = recompute(fn, {x});
  }
  sum(y.to(float32)).backward();
  y = recompute(fn, {x});
  const Autocast autocast(bfloat16);
  sum(y).backward();
  EXPECT_EQ(dtypes, (std::vector{bfloat16, bfloat16, float32, float32}));
}

TEST(Recompute, TakesUndefinedInputs) {
  const Tensor x = ones({2}).requires_grad_();
  const Tensor y = recompute(
      [](const std::vector<Tensor>& in) { return in[1].defined() ? in[0] * in[1] : in[0] * 3; },
      {x, Tensor()});
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{3, 3}));
}

TEST(Recompute, InputChangedInPlaceIsAnError) {
  const Tensor x = ones({2}), w = ones({2}).requires_grad_();
  const Tensor y = recompute([&](const std::vector<Tensor>& in) { return in[0] * w; }, {x});
  x.fill_(5);
  EXPECT_THROW(sum(y).backward(), Error);
}

}  // namespace
}  // namespace tutti
