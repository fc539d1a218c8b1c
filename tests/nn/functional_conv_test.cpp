// Tests of convolution as a differentiable function: layouts, mixed precision, errors, and faults
// of oneDNN. tests/random compares its values and gradients with plain loops.
#include "distributed/messages.h"
#include "distributed/process.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/conv.h>

#include <gtest/gtest.h>
#include <malloc.h>

namespace tutti {
namespace {

using nn::ConvOptions;

constexpr MemoryFormat last = MemoryFormat::channels_last;

struct Case {
  const char* name;
  Shape x, w;
  ConvOptions options;
};

// New memory is filled with a pattern, so that scratch memory which a kernel reads before it writes
// there changes the result.
class PatternInNewMemory {
 public:
  PatternInNewMemory() { mallopt(M_PERTURB, 0x80); }
  ~PatternInNewMemory() { mallopt(M_PERTURB, 0); }
  PatternInNewMemory(const PatternInNewMemory&) = delete;
  PatternInNewMemory& operator=(const PatternInNewMemory&) = delete;
};

// oneDNN 2.6.3 returns wrong gradients for an odd number of output channels and images of 30, 60
// and so on elements.
TEST(Conv, TheBfloat16GradientOfTheInputIsRightForOddChannels) {
  for (const Case& c :
       {Case{"line", {2, 3, 30}, {1, 3, 1}, {}}, Case{"image", {2, 3, 5, 6}, {17, 3, 1, 1}, {}},
        Case{"groups", {2, 6, 5, 6}, {6, 3, 1, 1}, {{1}, {0}, {1}, 2}},
        Case{"volume", {2, 3, 3, 4, 5}, {3, 3, 1, 1, 1}, {}}})
    for (const MemoryFormat format : {MemoryFormat::contiguous, last}) {
      const Tensor x = randn(c.x).to(bfloat16).contiguous(format), w = randn(c.w).to(bfloat16);
      const Tensor dy = randn(nn::convolution(x, w, {}, c.options).shape()).to(bfloat16);
      const auto gradient = [&](DType dtype) {
        const Tensor input = x.to(dtype).clone().requires_grad_();
        nn::convolution(input, w.to(dtype), {}, c.options)
            .backward(dy.to(dtype).contiguous(format));
        return input.grad().to(float64);
      };
      const Tensor expected = gradient(float64), difference = gradient(bfloat16) - expected;
      EXPECT_LT(max(abs(difference)).item<double>(), 0.01 * max(abs(expected)).item<double>())
          << c.name << " " << to_string(format);
    }
}

// On a processor with AMX, oneDNN takes other kernels, which do not have the fault. They are kept
// off by a variable that it reads once, so the test above runs in a program of its own.
TEST(Conv, TheBfloat16GradientOfTheInputIsRightWithoutAmxToo) {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx512bf16"))
    GTEST_SKIP() << "oneDNN has the fault in its kernels for the bfloat16 instructions of AVX-512";
#endif
  test::Process child({"/proc/self/exe", "--gtest_brief=1",
                       "--gtest_filter=Conv.TheBfloat16GradientOfTheInputIsRightForOddChannels"},
                      {"DNNL_MAX_CPU_ISA=AVX512_CORE_BF16"});
  const std::string output = child.rest();
  EXPECT_EQ(child.exit_code(), 0) << output;
}

// oneDNN's own kernels are wrong in these cases, in most of them by the largest numbers.
TEST(Conv, TheBfloat16GradientOfAWeightDoesNotDependOnUnwrittenMemory) {
  const PatternInNewMemory pattern;
  for (const Case& c :
       {Case{"groups", {2, 9, 6, 1, 4}, {9, 3, 3, 3, 3}, {{1, 3, 4}, {1, 1, 0}, {1}, 3}},
        Case{"wide", {2, 2, 3, 2, 6}, {3, 2, 3, 3, 2}, {{3, 1, 2}, {2, 1, 1}, {1}, 1}},
        Case{"deep", {1, 1, 4, 3, 5}, {1, 1, 3, 2, 3}, {{4, 2, 1}, {2, 1, 1}, {1}, 1}},
        Case{"small", {3, 1, 2, 4, 5}, {1, 1, 3, 1, 2}, {{3, 3, 2}, {2, 0, 0}, {1}, 1}},
        Case{"plain", {2, 3, 3, 5, 3}, {3, 3, 3, 3, 3}, {{2}, {1}, {1}, 1}}})
    for (const MemoryFormat format : {MemoryFormat::contiguous, last}) {
      const Tensor x = randn(c.x).to(bfloat16).contiguous(format), w = randn(c.w).to(bfloat16);
      const auto gradient = [&](DType dtype) {
        const Tensor weight = w.to(dtype).clone().requires_grad_();
        const Tensor y = nn::convolution(x.to(dtype), weight, {}, c.options);
        y.backward(ones(y.shape(), {.dtype = dtype}));
        return weight.grad().to(float64);
      };
      const Tensor expected = gradient(float64), difference = gradient(bfloat16) - expected;
      EXPECT_LT(max(abs(difference)).item<double>(), 0.01 * max(abs(expected)).item<double>())
          << c.name << " " << to_string(format);
    }
}

TEST(Conv, FormatIsTheInputsOrTheWeights) {
  const Tensor x = randn({2, 3, 8, 8}), w = randn({4, 3, 3, 3});
  EXPECT_EQ(nn::convolution(x, w).memory_format(), MemoryFormat::contiguous);
  EXPECT_EQ(nn::convolution(x.contiguous(last), w).memory_format(), last);
  EXPECT_EQ(nn::convolution(x, w.contiguous(last)).memory_format(), last);
  // An input with one channel has the same strides in both formats, so the weight decides.
  const Tensor w1 = randn({4, 1, 3, 3}).contiguous(last);
  EXPECT_EQ(nn::convolution(randn({2, 1, 8, 8}), w1).memory_format(), last);
}

TEST(Conv, GradientsHaveTheLayoutOfWhatTheyBelongTo) {
  for (MemoryFormat format : {MemoryFormat::contiguous, last}) {
    const Tensor x = randn({2, 3, 8, 8}).contiguous(last),
                 w = randn({4, 3, 3, 3}).contiguous(format);
    x.requires_grad_();
    w.requires_grad_();
    nn::convolution(x, w, {}, {.padding = {1}}).backward(ones({2, 4, 8, 8}));
    EXPECT_EQ(x.grad().strides(), x.strides());
    EXPECT_EQ(w.grad().strides(), w.strides());
  }
}

TEST(Conv, OnlyNeededGradients) {
  const Tensor x = randn({2, 3, 8, 8}), w = randn({4, 3, 3, 3}), b = randn({4});
  b.requires_grad_();
  nn::convolution(x, w, b).backward(ones({2, 4, 6, 6}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
  for (double value : to_vector(b.grad())) EXPECT_EQ(value, 2 * 6 * 6);
}

TEST(Conv, AutocastKeepsParametersAndTheirGradientsInFloat32) {
  const Tensor x = randn({2, 8, 8, 8}).contiguous(last), w = randn({16, 8, 3, 3}), b = randn({16});
  for (const Tensor& t : {x, w, b}) t.requires_grad_();
  const Tensor expected = nn::convolution(x, w, b);
  Tensor y;
  {
    const Autocast autocast(bfloat16);
    y = nn::convolution(x, w, b);
  }
  EXPECT_EQ(y.dtype(), bfloat16);
  y.backward(ones(y.shape(), {bfloat16}));
  const std::vector<double> is = to_vector(y), should = to_vector(expected);
  for (std::size_t i = 0; i < is.size(); ++i)
    EXPECT_NEAR(is[i], should[i], 0.03 * 8.5);  // 72 products of N(0, 1)
  for (const Tensor& t : {x, w, b}) EXPECT_EQ(t.grad().dtype(), float32);
}

TEST(Conv, SeesThatASavedWeightWasChanged) {
  const Tensor x = randn({1, 2, 4, 4}), w = randn({2, 2, 3, 3});
  x.requires_grad_();
  const Tensor y = nn::convolution(x, w);
  w.mul_(2);
  EXPECT_THROW(y.backward(ones(y.shape())), Error);
}

TEST(Conv, Errors) {
  const Tensor x = randn({2, 4, 8, 8}), w = randn({6, 4, 3, 3});
  EXPECT_THROW(nn::convolution(randn({4, 8, 8}), w), ShapeError);  // no batch
  EXPECT_THROW(nn::convolution(x, randn({6, 4, 3})), ShapeError);
  EXPECT_THROW(nn::convolution(x, randn({6, 3, 3, 3})), ShapeError);  // channels
  EXPECT_THROW(nn::convolution(x, empty({0, 4, 3, 3})), ShapeError);
  EXPECT_THROW(nn::convolution(x, empty({6, 4, 0, 3})), ShapeError);
  EXPECT_THROW(nn::convolution(x, randn({6, 4, 9, 3})), ShapeError);  // larger than the input
  EXPECT_THROW(nn::convolution(x, w, {}, {.dilation = {4}}), ShapeError);
  EXPECT_THROW(nn::convolution(x, w, randn({5})), ShapeError);
  EXPECT_THROW(nn::convolution(x, w, {}, {.stride = {0}}), ValueError);
  EXPECT_THROW(nn::convolution(x, w, {}, {.stride = {1, 1, 1}}), ValueError);
  EXPECT_THROW(nn::convolution(x, w, {}, {.padding = {-1}}), ValueError);
  EXPECT_THROW(nn::convolution(x, w, {}, {.dilation = {0}}), ValueError);
  EXPECT_THROW(nn::convolution(x, w, {}, {.groups = 0}), ValueError);
  EXPECT_THROW(nn::convolution(x, randn({6, 1, 3, 3}), {}, {.groups = 4}),
               ValueError);  // 6 outputs, 4 groups
  EXPECT_THROW(nn::convolution(x, w, {}, {.padding = {INT64_MAX}}), ShapeError);
  EXPECT_THROW(nn::convolution(x, w.to(float64)), DTypeError);
  EXPECT_THROW(nn::convolution(x.to(float16), w.to(float16)), DTypeError);
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              nn::convolution(x, randn({6, 3, 3, 3}));
            }),
            "convolution: expected input with 3 channels, got shape (2, 4, 8, 8)");
}

}  // namespace
}  // namespace tutti
