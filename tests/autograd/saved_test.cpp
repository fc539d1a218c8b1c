// Tests of recipes: a saved tensor that is computed again in backward instead of being kept.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using autograd::record;
using autograd::Saved;
using autograd::set_recipe;

constexpr std::int64_t n = 1000;
constexpr std::size_t bytes = 4096;  // of n float32 numbers, rounded up to a size of the allocator

std::size_t live() { return allocator(Device::cpu()).stats().live; }

// Returns a + 1 (+ b), which is computed again in backward; `computed` counts the computations.
Tensor successor(const Tensor& a, int& computed, const Tensor& b = {}) {
  const auto compute = [&computed](const std::vector<Tensor>& in) {
    ++computed;
    const Tensor y = in[0].clone();
    y.add_(ones({}));
    if (in[1].defined()) y.add_(in[1]);
    return y;
  };
  const Saved saved_a(a), saved_b(b);
  Tensor y;
  {
    const NoGrad no_grad;
    y = compute({a.detach(), b.defined() ? b.detach() : b});
  }
  return record("successor", y, {a, b},
                [recipe = set_recipe(y, "successor", {saved_a, saved_b}, compute),
                 has_b = b.defined()](const Tensor& g) {
                  return std::vector<Tensor>{g, has_b ? g : Tensor()};
                });
}

Tensor leaf(double value = 2) { return full({n}, value).requires_grad_(); }

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Saved, ATensorWithARecipeIsComputedOnceForAllWhoSavedItAndThenFreed) {
  const Tensor x = leaf();
  int computed = 0;
  const std::size_t before = live();
  Tensor z;
  {
    const Tensor y = successor(x, computed);
    z = square(y.reshape({10, 100})).reshape({n}) + exp(y) * 0 + square(y);  // exp saves its output
  }
  EXPECT_EQ(computed, 1);
  sum(z).backward();
  EXPECT_EQ(computed, 2);
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(n, 12));
  z = {};
  EXPECT_EQ(live(), before + bytes) << "only the gradient of x may be left";
}

TEST(Saved, NoMemoryIsKeptFromForwardToBackward) {
  const Tensor x = leaf();
  int computed = 0;
  const std::size_t before = live();
  const Tensor z = square(successor(x, computed));
  EXPECT_EQ(live(), before + bytes) << "only z; the input of the recipe is a leaf";
}

TEST(Saved, MemoryThatAnybodyHoldsIsUsedAndNothingIsComputedAgain) {
  const Tensor x = leaf();
  int computed = 0;
  const Tensor y = successor(x, computed);
  sum(square(y)).backward();
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(n, 6));
}

TEST(Saved, RetainedGraphsComputeAgainInEachBackwardAndFreeAfterIt) {
  const Tensor x = leaf();
  int computed = 0;
  Tensor z = sum(square(successor(x, computed)));
  z.backward({}, true);
  const std::size_t after_first = live();
  EXPECT_EQ(computed, 2);
  z.backward({}, true);
  EXPECT_EQ(computed, 3);
  EXPECT_EQ(live(), after_first);
  z.backward();
  EXPECT_EQ(computed, 4);
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(n, 18));
}

TEST(Saved, ChangesInPlaceOfTheValueOrOfWhatTheRecipeReadsAreErrors) {
  const auto error_after_change = [](bool of_input, bool drops) {
    const Tensor x = leaf();
    int computed = 0;
    Tensor y = successor(x, computed);
    const Tensor z = sum(square(y));
    {
      const NoGrad no_grad;
      (of_input ? x : y.detach()).fill_(3);
    }
    if (drops) y = {};
    return error_of([&] { z.backward(); });
  };
  for (const bool drops : {false, true}) {
    const std::string text = error_after_change(false, drops);
    EXPECT_NE(text.find("a tensor of shape (1000,) that it saved was changed in place"),
              std::string::npos)
        << text;
  }
  const std::string text = error_after_change(true, true);
  EXPECT_NE(text.find("from which the output of 'successor' that it saved is computed again, was "
                      "changed in place"),
            std::string::npos)
      << text;
  EXPECT_EQ(error_after_change(true, false), "") << "the value itself is still there";
}

TEST(Saved, AValueThatWasChangedBeforeItIsSavedIsKept) {
  const Tensor x = leaf();
  int computed = 0;
  Tensor z;
  {
    const Tensor y = successor(x, computed);
    y.detach().fill_(5);
    z = sum(square(y));
  }
  z.backward();
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(n, 10));
}

TEST(Saved, AChainIsComputedOnceAndHasAnEnd) {
  const Tensor x = leaf();
  constexpr int length = 12;
  int computed = 0;
  const std::size_t before = live();
  Tensor y = x, sums;
  for (int i = 0; i < length; ++i) {
    y = successor(y, computed);
    const Tensor all = sum(square(y));
    sums = sums.defined() ? sums + all : all;
  }
  y = {};
  EXPECT_EQ(computed, length);
  const std::size_t kept = (live() - before) / bytes;
  EXPECT_GE(kept, 1u);
  EXPECT_LE(kept, static_cast<std::size_t>(length / 2));
  sums.backward();
  EXPECT_EQ(computed, length + length - static_cast<int>(kept));
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(n, 2 * (12 * 2 + 78)));
}

TEST(Saved, AnInputThatOnlyARecipeReadsIsFreedAsSoonAsThatIsComputed) {
  const Tensor x = leaf();
  int computed = 0;
  std::size_t before = 0, with_value = 0;
  Tensor z;
  {
    const Tensor inner = successor(x, computed), outer = successor(x, computed, inner);
    z = record("watch", ones({n}), {outer}, [&, saved = Saved(outer)](const Tensor& g) {
      before = live();
      const Tensor value = saved;
      with_value = live();
      return g * value;
    });
  }
  z.backward(ones({n}));
  EXPECT_EQ(computed, 4);
  EXPECT_EQ(with_value, before + bytes);
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(n, 2 * (2 + 1 + 3)));
}

}  // namespace
}  // namespace tutti
