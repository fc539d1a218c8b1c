// Tests of pooling as differentiable functions: sizes, layouts and errors. tests/random compares
// the values and gradients with plain loops.
#include <tutti/core/create.h>
#include <tutti/nn/functional/pooling.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using nn::PoolOptions;
constexpr MemoryFormat formats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

TEST(Pooling, ShapesAndLayouts) {
  for (MemoryFormat format : formats) {
    const Tensor x = randn({2, 3, 9, 8}).contiguous(format);
    x.requires_grad_();
    const Tensor y = nn::max_pool(x, {.kernel = {3}, .stride = {2}, .padding = {1}});
    EXPECT_EQ(y.shape(), (Shape{2, 3, 5, 4}));
    EXPECT_EQ(y.memory_format(), format);
    y.backward(ones(y.shape()));
    EXPECT_EQ(x.grad().strides(), x.strides());
    EXPECT_EQ(nn::avg_pool(x, {.kernel = {2, 3}}).shape(),
              (Shape{2, 3, 4, 2}));  // the stride is the kernel
    EXPECT_EQ(nn::adaptive_avg_pool(x, {1}).shape(), (Shape{2, 3, 1, 1}));
  }
}

// As in PyTorch, a window that ceil_mode adds begins inside of the input or of the padding before
// it.
TEST(Pooling, NoWindowBeginsBehindTheInput) {
  const auto size = [](std::int64_t in, std::int64_t kernel, std::int64_t padding) {
    return nn::max_pool(
               ones({1, 1, in}),
               {.kernel = {kernel}, .stride = {2}, .padding = {padding}, .ceil_mode = true})
        .size(2);
  };
  EXPECT_EQ(size(2, 1, 0), 1);  // the second window would begin at 2
  EXPECT_EQ(size(3, 1, 0), 2);
  EXPECT_EQ(size(3, 2, 0), 2);
  EXPECT_EQ(size(3, 3, 1), 2);  // the third would begin at 3
  EXPECT_EQ(size(4, 3, 1), 3);
}

TEST(Pooling, Errors) {
  const Tensor x = randn({2, 3, 8, 8});
  EXPECT_THROW(nn::max_pool(randn({2, 3}), {.kernel = {2}}), ShapeError);
  EXPECT_THROW(nn::max_pool(x, {.kernel = {9}}), ShapeError);
  EXPECT_THROW(nn::max_pool(empty({2, 3, 0, 8}), {.kernel = {2}, .padding = {1}}), ShapeError);
  EXPECT_THROW(nn::max_pool(x, {}), ValueError);
  EXPECT_THROW(nn::max_pool(x, {.kernel = {0}}), ValueError);
  EXPECT_THROW(nn::max_pool(x, {.kernel = {2}, .stride = {0}}), ValueError);
  EXPECT_THROW(nn::avg_pool(x, {.kernel = {2}, .padding = {-1}}), ValueError);
  EXPECT_THROW(nn::avg_pool(x, {.kernel = {2}, .padding = {2}}),
               ValueError);  // windows of padding alone
  EXPECT_THROW(nn::avg_pool(x, {.kernel = {2, 2, 2}}), ValueError);
  EXPECT_THROW(nn::adaptive_avg_pool(x, {0}), ValueError);
  EXPECT_THROW(nn::adaptive_avg_pool(empty({2, 3, 0, 8}), {1}), ShapeError);
  EXPECT_THROW(nn::max_pool(x.to(float16), {.kernel = {2}}), DTypeError);
}

}  // namespace
}  // namespace tutti
