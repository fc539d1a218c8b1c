// Tests of stochastic depth: whole samples are dropped, the expectation stays, and the draw follows
// from the generator.
#include <tutti/autograd/functions.h>
#include <tutti/core/random.h>
#include <tutti/nn/drop_path.h>
#include <tutti/nn/functional/dropout.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

TEST(DropPath, DropsWholeSamplesAndKeepsTheExpectation) {
  Generator generator(5);
  const Tensor x = ones({4000, 2, 3}).requires_grad_();
  const Tensor y = nn::drop_path(x, 0.25, true, generator);
  const Tensor of_sample = sum(y, {1, 2});
  double kept = 0;
  for (const double v : to_vector(of_sample)) {
    EXPECT_TRUE(v == 0 || std::abs(v - 6 * 4.0 / 3) < 1e-5) << v;
    kept += v != 0;
  }
  EXPECT_NEAR(kept / 4000, 0.75, 4 * std::sqrt(0.75 * 0.25 / 4000));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), to_vector(y));
}

TEST(DropPath, TheDrawFollowsFromTheGeneratorWhateverTheLayout) {
  Generator a(7), b(7);
  const Tensor x = ones({40, 3, 2, 2});
  const Tensor last = nn::drop_path(x.contiguous(MemoryFormat::channels_last), 0.5, true, b);
  EXPECT_EQ(to_vector(nn::drop_path(x, 0.5, true, a)), to_vector(last));
  EXPECT_EQ(a.state(), b.state());
  EXPECT_EQ(last.memory_format(), MemoryFormat::channels_last);
}

TEST(DropPath, EdgesAndErrors) {
  const Tensor x = ones({3, 2});
  EXPECT_TRUE(nn::drop_path(x, 0.5, false).is_same(x));
  EXPECT_TRUE(nn::drop_path(x, 0, true).is_same(x));
  EXPECT_EQ(to_vector(nn::drop_path(x, 1, true)), std::vector<double>(6, 0));
  EXPECT_EQ(nn::drop_path(ones({0, 2}), 0.5, true).shape(), (Shape{0, 2}));
  EXPECT_THROW(nn::drop_path(x, 1.5, true), ValueError);
  EXPECT_THROW(nn::drop_path(scalar(1), 0.5, true), ShapeError);
  EXPECT_THROW(nn::DropPath({.p = std::nan("")}), ValueError);
  nn::DropPath layer({.p = 1});
  EXPECT_EQ(layer.describe(), "p=1");
  EXPECT_EQ(to_vector(layer(x)), std::vector<double>(6, 0));
  layer.eval();
  EXPECT_TRUE(layer(x).is_same(x));
}

}  // namespace
}  // namespace tutti
