// Tests of transposed convolution: layouts, mixed precision, initial values, errors. tests/random
// compares its values and gradients with plain loops.
#include "distributed/messages.h"
#include "fixture.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/conv_transpose.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using nn::conv_transpose;
using test::message_of;

TEST(ConvTranspose, FormatIsTheInputsOrTheWeightsAndGradientsHaveTheirOwn) {
  const Tensor x = randn({2, 3, 4, 4}).contiguous(MemoryFormat::channels_last),
               w = randn({3, 4, 2, 2});
  for (const Tensor& t : {x, w}) t.requires_grad_();
  const Tensor y = conv_transpose(x, w, {}, {.stride = {2}});
  EXPECT_EQ(y.shape(), (Shape{2, 4, 8, 8}));
  EXPECT_EQ(y.memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ(conv_transpose(x.contiguous(), w).memory_format(), MemoryFormat::contiguous);
  EXPECT_EQ(
      conv_transpose(x.contiguous(), w.contiguous(MemoryFormat::channels_last)).memory_format(),
      MemoryFormat::channels_last);
  y.backward(ones(y.shape()));
  EXPECT_EQ(x.grad().strides(), x.strides());
  EXPECT_EQ(w.grad().strides(), w.strides());
}

TEST(ConvTranspose, AutocastKeepsParametersAndTheirGradientsInFloat32) {
  const Tensor x = randn({2, 8, 6, 6}).contiguous(MemoryFormat::channels_last),
               w = randn({8, 16, 2, 2}), b = randn({16});
  for (const Tensor& t : {x, w, b}) t.requires_grad_();
  const Tensor expected = conv_transpose(x, w, b, {.stride = {2}});
  const auto gradients = [&](const Tensor& y) {
    for (const Tensor& t : {x, w, b}) t.set_grad({});
    y.backward(ones(y.shape(), {y.dtype()}));
    return std::vector{x.grad().clone(), w.grad().clone(), b.grad().clone()};
  };
  Tensor y;
  {
    const Autocast autocast(bfloat16);
    y = conv_transpose(x, w, b, {.stride = {2}});
  }
  EXPECT_EQ(y.dtype(), bfloat16);
  EXPECT_LT(distance(y.detach(), expected.detach()), 0.01);
  const std::vector<Tensor> should = gradients(expected), is = gradients(y);
  for (std::size_t i = 0; i < is.size(); ++i) {
    EXPECT_EQ(is[i].dtype(), float32);
    EXPECT_LT(distance(is[i], should[i]), 0.02) << i;
  }
}

// PyTorch draws from the bound of the weight's second dimension, not from that of the inputs.
TEST(ConvTranspose, DrawsInitialValuesAsPyTorchDoes) {
  const nn::ConvTranspose2d layer({.in = 64, .out = 9, .kernel = 4, .stride = 2});
  const double bound = 1 / std::sqrt(9 * 16.0);
  for (const Tensor& t : {layer.weight, layer.bias}) {
    const double largest = max(abs(t.detach())).item<double>();
    EXPECT_LE(largest, bound);
    EXPECT_GT(largest, 0.7 * bound);
  }
  EXPECT_EQ(layer.describe(), "64, 9, kernel=4, stride=2");
}

TEST(ConvTranspose, Errors) {
  const Tensor x = randn({2, 4, 3, 3}), w = randn({4, 3, 3, 3});
  EXPECT_THROW(conv_transpose(randn({4, 3, 3}), w), ShapeError);
  EXPECT_THROW(conv_transpose(x, randn({4, 3, 3})), ShapeError);
  EXPECT_THROW(conv_transpose(x, randn({5, 3, 3, 3})), ShapeError);
  EXPECT_THROW(conv_transpose(x, empty({4, 0, 3, 3})), ShapeError);
  EXPECT_THROW(conv_transpose(x, w, randn({4})), ShapeError);
  EXPECT_THROW(conv_transpose(x, w, {}, {.padding = {3}}), ShapeError);  // nothing is left
  EXPECT_THROW(conv_transpose(x, w, {}, {.stride = {std::int64_t{1} << 40}}), ShapeError);
  EXPECT_THROW(conv_transpose(x, w, {}, {.stride = {0}}), ValueError);
  EXPECT_THROW(conv_transpose(x, w, {}, {.groups = 3}), ValueError);
  EXPECT_THROW(conv_transpose(x, w.to(float64)), DTypeError);
  EXPECT_THROW(nn::ConvTranspose2d({.in = 4, .out = 6, .kernel = 2, .groups = 4}), ValueError);
  EXPECT_EQ(message_of<ValueError>([&] { conv_transpose(x, w, {}, {.output_padding = {1}}); }),
            "conv_transpose: expected an output_padding below the stride (1, 1), got (1, 1)");
}

}  // namespace
}  // namespace tutti
