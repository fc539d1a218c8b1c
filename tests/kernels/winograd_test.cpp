// Winograd's convolution on the CPU against the plain float64 reference. Whether it is chosen does
// not matter here; convolution_test.cpp and the random comparisons call what is chosen.
#include "kernels/compare.h"

#include <tutti/kernels/cpu/reference.h>
#include <tutti/kernels/cpu/winograd.h>
#include <tutti/kernels/kernels.h>
#include <tutti/nn/functional/conv.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

namespace winograd = kernels::cpu::winograd;
namespace reference = kernels::cpu::reference;
using kernels::ConvOptions;
using test::normal;
using test::pick;
using test::poisoned;
using test::relative_error;
using test::Threads;

constexpr MemoryFormat last = MemoryFormat::channels_last;

// The direct sum in float32 has 1e-6 with these sizes. The results in bfloat16 are rounded to 8
// bits.
double tolerance(DType dtype) { return dtype == bfloat16 ? 2e-3 : 5e-6; }

struct Problem {
  ConvOptions options;
  Tensor x, w, bias, dy;

  Problem(std::int64_t images, std::int64_t ins, std::int64_t outs, std::int64_t height,
          std::int64_t width, std::int64_t padding, DType dtype = float32,
          DType weight_dtype = float32, MemoryFormat weight_format = last,
          std::int64_t dilation = 1)
      : options{{1, 1}, {padding * dilation, padding * dilation}, {dilation, dilation}, 1},
        x(normal({images, ins, height, width}, dtype, last)),
        w(normal({outs, ins, 3, 3}, weight_dtype, weight_format)),
        bias(normal({outs}, weight_dtype)),
        dy(normal({images, outs, height + 2 * dilation * (padding - 1),
                   width + 2 * dilation * (padding - 1)},
                  dtype, last)) {}
};

void expect_agreement(const Problem& p) {
  SCOPED_TRACE(to_string(p.x.dtype()) + " " + to_string(p.x.shape()) + " weight " +
               to_string(p.w.dtype()) + " " + to_string(p.w.shape()) + " padding " +
               to_string(p.options.padding) + " dilation " + to_string(p.options.dilation));
  const Tensor y = poisoned(p.dy.shape(), p.x.dtype(), last),
               dx = poisoned(p.x.shape(), p.x.dtype(), last),
               dw = poisoned(p.w.shape(), p.w.dtype(), p.w.memory_format());
  ASSERT_TRUE(winograd::can_convolve(p.x, p.w, y, p.options));
  ASSERT_TRUE(winograd::forward(p.x, p.w, p.bias, p.options, y));
  ASSERT_TRUE(winograd::backward_input(p.dy, p.w, p.options, dx));
  ASSERT_TRUE(winograd::backward_weight(p.x, p.dy, p.options, dw));

  const Tensor x64 = p.x.to(float64), w64 = p.w.to(float64), dy64 = p.dy.to(float64);
  const Tensor y64 = poisoned(y.shape(), float64), dx64 = poisoned(dx.shape(), float64),
               dw64 = poisoned(dw.shape(), float64);
  reference::convolution_forward(x64, w64, p.bias.to(float64), p.options, y64);
  reference::convolution_backward_input(dy64, w64, p.options, dx64);
  reference::convolution_backward_weight(x64, dy64, p.options, dw64, {});
  EXPECT_LE(relative_error(y, y64), tolerance(y.dtype()));
  EXPECT_LE(relative_error(dx, dx64), tolerance(dx.dtype()));
  EXPECT_LE(relative_error(dw, dw64), tolerance(dw.dtype()));
}

TEST(Winograd, AgreesWithTheReferenceInFloat64) {
  for (int i = 0; i < 24; ++i) {
    const Threads threads(i % 2 + 1);
    const DType dtype = i % 4 < 2 ? float32 : bfloat16;
    const MemoryFormat format = i % 3 == 0 ? MemoryFormat::contiguous : last;
    const std::int64_t dilation = i < 12 ? 1 : pick(2, 4), least = 2 * dilation + 1;
    expect_agreement({pick(1, 3), 16 * pick(1, 4), 16 * pick(1, 4), pick(least, 19),
                      pick(least, 19), pick(0, 2), dtype, i % 8 < 4 ? float32 : dtype, format,
                      dilation});
  }
}

// More tiles than a block holds, which the sizes above do not reach: 900, of which a block has 180
// or, for the gradient of the weight, 450.
TEST(Winograd, ComputesAllBlocks) { expect_agreement({4, 16, 128, 57, 58, 1}); }

// The kernels of a part have 224 output channels, or 448 for the gradient of the input.
TEST(Winograd, ComputesAllParts) { expect_agreement({1, 512, 256, 6, 7, 1}); }

TEST(Winograd, GivesTheSameBitsAgain) {
  const Problem p(2, 32, 48, 30, 30, 1);
  const Tensor first = poisoned(p.dy.shape(), float32, last),
               again = poisoned(p.dy.shape(), float32, last);
  ASSERT_TRUE(winograd::forward(p.x, p.w, {}, p.options, first));
  ASSERT_TRUE(winograd::forward(p.x, p.w, {}, p.options, again));
  EXPECT_EQ(to_vector(first), to_vector(again));
}

// Otherwise one NaN or infinity in an image would reach outputs whose windows do not contain it.
TEST(Winograd, GivesUpWhereAnElementIsNotFinite) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e38}) {
    const Problem p(1, 32, 32, 12, 12, 1);
    const Tensor y = poisoned(p.dy.shape(), float32, last),
                 dw = poisoned(p.w.shape(), float32, last);
    p.x.slice(2, 5, 6).fill_(value);
    EXPECT_FALSE(winograd::forward(p.x, p.w, {}, p.options, y)) << value;
    EXPECT_FALSE(winograd::backward_weight(p.x, p.dy, p.options, dw)) << value;
  }
}

TEST(Winograd, TheConvolutionThatCallsItKeepsNanInItsWindows) {
  const Problem p(2, 64, 64, 28, 28, 1);
  const Tensor y = poisoned(p.dy.shape(), float32, last);
  ASSERT_TRUE(winograd::is_faster(p.x, p.w, y, p.options));
  p.x.slice(0, 1, 2).slice(2, 9, 10).slice(3, 9, 10).fill_(
      std::numeric_limits<double>::quiet_NaN());
  kernels::cpu::table().convolution.forward(p.x, p.w, p.bias, p.options, y);
  const auto has_nan = [&](std::int64_t row, std::int64_t column) {
    const auto values =
        to_vector(y.slice(0, 1, 2).slice(2, row, row + 1).slice(3, column, column + 1));
    return std::ranges::any_of(values, [](double each) { return std::isnan(each); });
  };
  for (std::int64_t row = 6; row < 13; ++row)
    for (std::int64_t column = 6; column < 13; ++column)
      EXPECT_EQ(has_nan(row, column), std::abs(row - 9) <= 1 && std::abs(column - 9) <= 1)
          << row << ", " << column;
}

// Beside an input of 1,000 an output whose window does not contain it keeps the error of a direct
// sum, relative to the root mean square of such outputs. Winograd's algorithm is off by 1e-4 there.
TEST(Winograd, ExactConvolutionsAreDirectSumsBesideAnOutlier) {
  const Problem p(1, 64, 64, 28, 28, 1);
  p.x.slice(1, 3, 4).slice(2, 13, 14).slice(3, 13, 14).fill_(1000);
  const auto far_outputs = [&](DType dtype) {
    const Tensor y = nn::convolution(p.x.to(dtype), p.w.to(dtype), {}, {.padding = {1}});
    y.slice(2, 12, 15).slice(3, 12, 15).fill_(0);
    return to_vector(y);
  };
  const Tensor y = poisoned(p.dy.shape(), float32, last);
  ASSERT_TRUE(winograd::is_faster(p.x, p.w, y, p.options));
  nn::set_exact_convolutions();
  const bool is_chosen = winograd::is_faster(p.x, p.w, y, p.options);
  const std::vector<double> direct = far_outputs(float32);
  nn::set_exact_convolutions(false);
  EXPECT_FALSE(is_chosen);
  EXPECT_TRUE(winograd::is_faster(p.x, p.w, y, p.options));

  const std::vector<double> expected = far_outputs(float64);
  double largest = 0, squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(direct[i] - expected[i]));
    squares += expected[i] * expected[i];
  }
  EXPECT_LE(largest, 1e-5 * std::sqrt(squares / static_cast<double>(expected.size())));
}

}  // namespace
}  // namespace tutti
