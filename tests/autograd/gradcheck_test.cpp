// Tests of gradcheck itself: it passes right gradients and names wrong ones.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using autograd::gradcheck;
using autograd::record;
using Inputs = std::vector<Tensor>;

// Returns x^2 with the gradient `slope` * x, which is right for a slope of 2.
Tensor square_with(const Tensor& x, double slope) {
  const Tensor in = x.detach();
  return record("square", in * in, {x}, [in, slope](const Tensor& g) { return g * in * slope; });
}

TEST(Gradcheck, PassesARightGradientAndReportsTheError) {
  const auto result =
      gradcheck([](const Inputs& v) { return square_with(v[0], 2); }, {tensor({1, -2, 3}, f64)});
  EXPECT_TRUE(result);
  EXPECT_TRUE(result.message.empty());
  EXPECT_LT(result.worst, 1e-8);
}

TEST(Gradcheck, NamesTheElementOfAWrongGradient) {
  const auto result = gradcheck(
      [](const Inputs& v) {
        const Tensor in = v[1].detach();
        return record("bad", v[0].detach() + in, {v[0], v[1]}, [](const Tensor& g) {
          const Tensor wrong = g.clone();
          wrong.select(0, 2).mul_(1.001);
          return std::vector{g, wrong};
        });
      },
      {tensor({1, 2, 3}, f64), tensor({4, 5, 6}, f64)});
  EXPECT_FALSE(result);
  EXPECT_NE(result.message.find("input 1 of shape (3,), element 2"), std::string::npos)
      << result.message;
  EXPECT_FALSE(
      gradcheck([](const Inputs& v) { return square_with(v[0], 2.001); }, {tensor({1}, f64)}));
}

TEST(Gradcheck, SeesAMissingGradientAndNaN) {
  EXPECT_FALSE(gradcheck([](const Inputs& v) { return v[0].detach() * 2; }, {tensor({1}, f64)}));
  EXPECT_FALSE(
      gradcheck([](const Inputs& v) { return square_with(v[0], NAN); }, {tensor({1}, f64)}));
}

TEST(Gradcheck, SeesInputsThatAreWrittenAndResultsThatVary) {
  const auto writes = gradcheck(
      [](const Inputs& v) {
        v[0].detach().add_(ones({1}, f64));
        return v[0] * 1;
      },
      {tensor({1}, f64)});
  EXPECT_NE(writes.message.find("changed input 0"), std::string::npos) << writes.message;
  int calls = 0;
  const auto varies =
      gradcheck([&](const Inputs& v) { return v[0] * ++calls; }, {tensor({1}, f64)});
  EXPECT_NE(varies.message.find("different gradients"), std::string::npos) << varies.message;
}

TEST(Gradcheck, KeepsLayoutsAndLeavesTheCallersTensorsAlone) {
  const Tensor x = rand({2, 3, 4, 4}, f64).contiguous(MemoryFormat::channels_last);
  const auto before = to_vector(x);
  EXPECT_TRUE(gradcheck(
      [](const Inputs& v) {
        EXPECT_EQ(v[0].memory_format(), MemoryFormat::channels_last);
        return v[0] * v[0];
      },
      {x}));
  EXPECT_EQ(to_vector(x), before);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Gradcheck, RefusesInputsItCannotCheck) {
  const auto identity = [](const Inputs& v) { return v[0] * 1; };
  EXPECT_THROW((void)gradcheck(identity, {tensor({1})}), DTypeError);
  EXPECT_THROW((void)gradcheck(identity, {tensor({1}, f64).expand({3})}), ShapeError);
}

TEST(Gradcheck, HintsAtAnOperationThatRecordedUnderItsOwnNoGrad) {
  const auto lossy = [](const Inputs& v) {
    const NoGrad no_grad;  // still alive when record() is called
    return record("lossy", v[0] * v[0], {v[0]},
                  [x = v[0].detach()](const Tensor& g) { return g * x * 2; });
  };
  const auto result = gradcheck(lossy, {tensor({1, 2}, f64)});
  EXPECT_FALSE(result);
  EXPECT_NE(result.message.find("does not require a gradient: was record() called under NoGrad"),
            std::string::npos)
      << result.message;
  const auto wrong =
      gradcheck([](const Inputs& v) { return square_with(v[0], 3); }, {tensor({1, 2}, f64)});
  EXPECT_EQ(wrong.message.find("NoGrad"), std::string::npos) << wrong.message;
}

}  // namespace
}  // namespace tutti
