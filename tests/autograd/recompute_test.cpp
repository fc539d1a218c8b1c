// Tests of recomputation: the gradients are the same, less memory is saved, random draws are
// repeated, the tape is loaded, and a second run that is not the first one again is an error.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/autograd/matmul.h>
#include <tutti/autograd/recompute.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/dropout.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tutti {
namespace {

using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

// Returns the message of the error that backward ends with; empty if it ends with none.
std::string error_of_backward(const Tensor& y) {
  try {
    sum(y).backward();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Expects that backward reports a change between the two runs of `fn`, and that another backward
// without the change gives the gradient of the plain graph.
void expect_change_is_reported(const Function& fn, const std::function<void()>& change,
                               const std::string& text, const std::string& what) {
  const Tensor x = full({3}, 0.5).requires_grad_(), same = full({3}, 0.5).requires_grad_();
  sum(recompute(fn, {x})).backward();
  sum(fn({same})).backward();
  EXPECT_EQ(to_vector(x.grad()), to_vector(same.grad())) << what;
  const Tensor y = recompute(fn, {x});
  change();
  const std::string error = error_of_backward(y);
  EXPECT_NE(error.find(text), std::string::npos) << what << ": " << error;
}

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

TEST(Recompute, AnyTensorThatTheFunctionReadsIsGuarded) {
  const Tensor w = full({3}, 2).requires_grad_(), c = full({3}, 0.25);
  const Tensor index = tensor({2, 0, 1}, {int64});
  const auto scale = [](const Tensor& t, double factor) {
    return [t, factor] {
      const NoGrad no_grad;
      t.mul_(factor);
    };
  };
  const std::string changed =
      "a tensor of shape (3,) that was changed in place since the first one";
  expect_change_is_reported([&](const Inputs& in) { return in[0] * w; }, scale(w, 10), changed,
                            "a parameter");
  // The plain graph saves none of the following; the second run computes with them.
  expect_change_is_reported([&](const Inputs& in) { return sin(in[0] + c); }, scale(c, 2), changed,
                            "a term");
  expect_change_is_reported([&](const Inputs& in) { return in[0] * gt(c, 0.1).to(float32); },
                            scale(c, -1), changed, "a comparison");
  expect_change_is_reported([&](const Inputs& in) { return square(gather(in[0], 0, index)); },
                            [&] { index.fill_(1); }, changed, "an index");
  expect_change_is_reported([&](const Inputs& in) { return in[0] * sum(c).item<double>(); },
                            scale(c, 2), changed, "a number of the host");
  expect_change_is_reported([&](const Inputs& in) { return in[0] * c.slice(0, 1, 2); },
                            [&] { c.slice(0, 1, 2).fill_(7); }, "was changed in place", "a part");
}

TEST(Recompute, AnotherTensorInThePlaceOfTheFirstIsAnError) {
  Tensor h = full({3}, 2);
  const Tensor w = full({3}, 2).requires_grad_();
  const std::string other = "a tensor of shape (3,) that the first one did not read";
  expect_change_is_reported([&](const Inputs& in) { return in[0] * h; }, [&] { h = h * 3; }, other,
                            "a variable that is captured by reference");
  expect_change_is_reported([&](const Inputs& in) { return in[0] * w; },
                            [&] { w.set_data(full({3}, 5)); }, other,
                            "a parameter with other data");
}

TEST(Recompute, AChangeByTheFirstRunItselfIsAnError) {
  const Tensor direction = full({3}, 2);
  int runs = 0;
  // The power iteration of spectral normalisation: a buffer moves in every forward.
  const auto fn = [&](const Inputs& in) {
    ++runs;
    const Tensor y = in[0] * direction.clone();
    direction.mul_(0.5);
    return y;
  };
  const Tensor x = full({3}, 0.5).requires_grad_();
  const Tensor y = recompute(fn, {x});
  EXPECT_NE(error_of_backward(y).find("was changed in place since the first one"),
            std::string::npos);
  EXPECT_EQ(runs, 2);
}

TEST(Recompute, AFrozenOrUnfrozenParameterIsAnError) {
  const Tensor w = full({3}, 2).requires_grad_();
  const Function fn = [&](const Inputs& in) { return in[0] * w; };
  expect_change_is_reported(
      fn, [&] { w.requires_grad_(false); }, "a parameter was frozen or unfrozen", "frozen");
  expect_change_is_reported(
      fn, [&] { w.requires_grad_(true); }, "a parameter was frozen or unfrozen", "unfrozen");
}

TEST(Recompute, WhatThePlainGraphAcceptsIsAccepted) {
  Generator generator(4);
  const auto leaf = [&] { return randn({3, 3}, {.dtype = float64}, generator).requires_grad_(); };
  const Tensor w = leaf(), outside = exp(leaf().detach());
  std::optional<Tensor> made_at_first;  // a cache
  const Function block = [&, outside](const Inputs& in) {
    if (!made_at_first) {
      made_at_first = zeros({3, 3}, {.dtype = float64});
      made_at_first->slice(0, 1, 3).fill_(2);
    }
    const Tensor own = zeros({3, 3}, {.dtype = float64});
    own.copy_(outside);  // changes in place of what the function made
    own.add_(outside.detach()).mul_(0.5);
    const Tensor scaled = matmul(in[0], w) * own + *made_at_first;
    return tanh(scaled) * in[0].detach();
  };
  const auto train = [&](const Function& fn) {
    made_at_first.reset();
    const Tensor x = full({3, 3}, 0.25, {.dtype = float64}).requires_grad_();
    w.set_grad({});
    for (int step = 0; step < 3; ++step) {
      // Two uses of one function, of which the second runs again first, and of one of them twice.
      const Tensor y = fn({x}), z = fn({square(y)});
      sum(z + y * y).backward({}, true);
      sum(z + y * y).backward();
      const NoGrad no_grad;
      w.add_(w.grad(), -0.1);
      x.mul_(1.25);
    }
    return to_vector(cat({x.grad(), w.grad()}, 0));
  };
  const auto expect_near = [](const std::vector<double>& got, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-12);
  };
  const Tensor before = w.detach().clone();
  const auto expected = train(block);
  w.detach().copy_(before);
  const Function once = [&](const Inputs& in) { return recompute(block, in); };
  expect_near(train(once), expected);
  w.detach().copy_(before);
  expect_near(train([&](const Inputs& in) { return recompute(once, in); }), expected);
}

TEST(Recompute, ChangesAreFoundInNestedRuns) {
  const Tensor w = full({3}, 2).requires_grad_(), v = full({3}, 2).requires_grad_();
  const Function inner = [&](const Inputs& in) { return tanh(in[0] * w); };
  const Function outer = [&](const Inputs& in) {
    return recompute(inner, {recompute(inner, {in[0] * v})});
  };
  for (const Tensor& changed : {w, v})
    expect_change_is_reported(
        outer,
        [&] {
          const NoGrad no_grad;
          changed.mul_(3);
        },
        "was changed in place", changed.is_same(w) ? "inner" : "outer");
}

TEST(Recompute, BackwardOnAnotherThread) {
  const Tensor x = ones({1000}).requires_grad_(), w = full({1000}, 3).requires_grad_();
  const Tensor y =
      recompute([&](const Inputs& in) { return nn::dropout(in[0] * w, 0.5, true); }, {x});
  std::thread([&] {
    default_generator().next();
    const Generator::State before = default_generator().state();
    sum(y).backward();
    EXPECT_EQ(default_generator().state(), before);
  }).join();
  EXPECT_EQ(to_vector(x.grad()), to_vector(y));
}

// Expects that both runs draw the same numbers, and that backward leaves `generator` where it was.
void expect_same_draws(const Function& fn, Generator& generator, const std::string& what) {
  const Tensor x = ones({1000}).requires_grad_();
  const Tensor y = recompute(fn, {x});
  generator.next();
  const Generator::State moved = generator.state();
  for (int backward = 0; backward < 2; ++backward) {
    x.set_grad({});
    sum(y).backward({}, true);
    EXPECT_EQ(to_vector(x.grad()), to_vector(y)) << what;
    EXPECT_EQ(generator.state(), moved) << what;
  }
}

TEST(Recompute, AnyGeneratorRepeatsItsDraws) {
  Generator own(3);
  const auto drop = [](const Tensor& x, Generator& generator) {
    return nn::dropout(x, 0.5, true, generator);
  };
  expect_same_draws([&](const Inputs& in) { return drop(in[0], own); }, own, "one of one's own");
  expect_same_draws(
      [&](const Inputs& in) { return nn::drop_path(drop(drop(in[0], own), own), 0.3, true); }, own,
      "with the default one");
  expect_same_draws([&](const Inputs& in) { return in[0] * own.uniform() * own.normal(); }, own,
                    "numbers of the host");
  expect_same_draws(
      [&](const Inputs& in) {
        Generator copy = own, seeded(9);
        copy = own;
        return drop(drop(in[0], copy), seeded);
      },
      own, "a copy, and a local one");
  expect_same_draws(
      [&](const Inputs& in) {
        manual_seed(4);
        return drop(drop(in[0], default_generator()), own);
      },
      default_generator(), "a seed inside");
  expect_same_draws(
      [captured = Generator(5), drop](const Inputs& in) mutable { return drop(in[0], captured); },
      own, "one that the function owns");
  expect_same_draws(
      [&](const Inputs& in) {
        const Function inner = [&](const Inputs& i) { return drop(i[0], own); };
        return drop(recompute(inner, {drop(in[0], own)}), own);
      },
      own, "nested");
}

TEST(Recompute, OtherDrawsAreAnError) {
  Generator own(3), other(3);
  double p = 0.5;
  Generator* used = &own;
  const Function fn = [&](const Inputs& in) { return nn::dropout(in[0], p, true, *used); };
  const auto error = [&](const std::function<void()>& change) {
    p = 0.5;
    used = &own;
    const Tensor y = recompute(fn, {ones({8}).requires_grad_()});
    change();
    const Generator::State before = own.state(), of_other = other.state();
    const std::string text = error_of_backward(y);
    EXPECT_EQ(own.state(), before);
    EXPECT_EQ(other.state(), of_other);
    return text;
  };
  EXPECT_NE(error([&] { p = 0; }).find("leaves a random generator alone"), std::string::npos);
  EXPECT_NE(error([&] { used = &other; }).find("draws from a generator that the first one did not"),
            std::string::npos);
}

TEST(Recompute, EntriesThatAreLeftOnTheTapeAreAnError) {
  bool first = true;
  const Tensor y = recompute(
      [&](const Inputs& in) {
        auto* tape = autograd::RecomputeTape::current();
        if (std::exchange(first, false)) tape->save("a layer", {ones({})});
        return in[0] * 2;
      },
      {ones({2}).requires_grad_()});
  EXPECT_NE(error_of_backward(y).find("leaves a saved result of a layer"), std::string::npos);
}

}  // namespace
}  // namespace tutti
