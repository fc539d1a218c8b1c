// Convolution kernels: those of oneDNN are compared with the plain float64 reference over random
// shapes, and the reference with numbers worked out by hand.
#include "kernels/compare.h"
#include "kernels/random_convolution.h"
#include "kernels/tables.h"

#include <tutti/core/parallel.h>
#include <tutti/kernels/cpu/onednn.h>
#include <tutti/kernels/cpu/reference.h>

#include <gtest/gtest.h>

#include <thread>

namespace tutti::convolution_test {
namespace {

using kernels::ConvOptions;
using Case = test::ConvolutionCase;
using test::normal;
using test::pick;
using test::poisoned;
using test::relative_error;
using test::Threads;
namespace reference = kernels::cpu::reference;

// oneDNN multiplies in float32 as it stands; cuDNN may choose an algorithm that transforms its
// operands (Winograd's), and gives the gradient of a float32 weight, where activations have 16
// bits, in 16 bits.
double single() { return test::test_device().is_cpu() ? 2e-6 : 1e-5; }
double mixed() { return test::test_device().is_cpu() ? 1e-5 : 8e-3; }
// One element may be nearly all of a small result: rounding the bias and the sum to bfloat16 is
// 2^-7 of it at most.
double brain() { return test::test_device().is_cpu() ? 4e-3 : 8e-3; }

constexpr MemoryFormat formats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

// Every kernel of `dtype` against the reference on the same (rounded) numbers in float64.
// `parameters`: of w and bias.
void check(const Case& c, DType dtype, DType parameters, MemoryFormat format,
           MemoryFormat weight_format, bool with_bias, double tolerance,
           double parameter_tolerance) {
  SCOPED_TRACE(c.text() + " " + to_string(format) + " weight " + to_string(weight_format) + " " +
               to_string(dtype));
  const auto& table = test::convolution();
  const Tensor x = normal(c.x, dtype, format), dy = normal(c.y, dtype, format);
  const Tensor w = normal(c.w, parameters, weight_format);
  const Tensor bias = with_bias ? normal({c.w[0]}, parameters) : Tensor();

  const Tensor y = poisoned(c.y, dtype, format), dx = poisoned(c.x, dtype, format);
  const Tensor dw = poisoned(c.w, parameters, weight_format),
               db = with_bias ? poisoned({c.w[0]}, parameters) : Tensor();
  table.forward(x, w, bias, c.options, y);
  table.backward_input(dy, w, c.options, dx);
  table.backward_weight(x, dy, c.options, dw, db);

  // A float32 weight meets bfloat16 activations rounded to bfloat16.
  const Tensor w64 = w.to(dtype).to(float64);
  const Tensor y64 = poisoned(c.y, float64), dx64 = poisoned(c.x, float64),
               dw64 = poisoned(c.w, float64),
               db64 = with_bias ? poisoned({c.w[0]}, float64) : Tensor();
  reference::convolution_forward(x.to(float64), w64, with_bias ? bias.to(float64) : bias, c.options,
                                 y64);
  reference::convolution_backward_input(dy.to(float64), w64, c.options, dx64);
  reference::convolution_backward_weight(x.to(float64), dy.to(float64), c.options, dw64, db64);
  EXPECT_LE(relative_error(y, y64), tolerance);
  EXPECT_LE(relative_error(dx, dx64), tolerance);
  EXPECT_LE(relative_error(dw, dw64), parameter_tolerance);
  if (with_bias) {
    EXPECT_LE(relative_error(db, db64), parameter_tolerance);
  }
}

class RandomConvolution : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RandomConvolution, AgreesWithTheReference) {
  const auto [spatial, kind] = GetParam();
  for (int i = 0; i < 6; ++i)
    for (MemoryFormat format : formats) {
      const Threads threads(i == 0 ? 2 : 1);
      const Case c = test::random_convolution(spatial, kind,
                                              {3, 20, spatial == 3 ? 3 : 5, spatial == 3 ? 8 : 13});
      const MemoryFormat weight_format = formats[pick(0, 1)];
      check(c, float32, float32, format, weight_format, i % 2 == 0, single(), single());
      check(c, bfloat16, bfloat16, format, weight_format, i % 2 == 0, brain(), brain());
      check(c, bfloat16, float32, format, weight_format, i % 2 == 0, brain(), mixed());
      if (test::test_device().is_cpu())
        continue;  // whose float64 is the reference itself, and has no float16
      check(c, float64, float64, format, weight_format, i % 2 == 0, 1e-13, 1e-13);
      check(c, float16, float16, format, weight_format, i % 2 == 0, 1e-3, 1e-3);
      check(c, float16, float32, format, weight_format, i % 2 == 0, 1e-3, 1e-3);
    }
}

INSTANTIATE_TEST_SUITE_P(Convolution, RandomConvolution,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(0, 1, 2)));

// This gradient is not oneDNN's, and has to take the weight that forward multiplied with. A weight
// that is not rounded shows in one of 20 trials.
TEST(Convolution, TheGradientOfOddChannelsRoundsAFloat32WeightAsForwardDoes) {
  const Case c{.x = {3, 1, 3, 6},
               .w = {3, 1, 1, 1},
               .y = {3, 3, 3, 3},
               .options = {{3, 3}, {3, 1}, {1, 2}, 1}};
  for (int i = 0; i < 300; ++i)
    check(c, bfloat16, float32, MemoryFormat::contiguous, MemoryFormat::contiguous, false, brain(),
          mixed());
}

// Kernels must not depend on what their scratch memory held before: here NaN of the previous
// convolution.
TEST(Convolution, ScratchMemoryIsNotReadBeforeItIsWritten) {
  const Threads one(1);
  const auto& table = test::convolution();
  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const ConvOptions plain{{1, 1}, {0, 0}, {1, 1}, 1}, wide{{3}, {2}, {1}, 3};
  const Tensor nan_x = poisoned({1, 64, 20, 20}, bfloat16, last),
               nan_w = poisoned({64, 64, 3, 3}, float32);
  for (const std::int64_t width : {2, 3, 8}) {
    table.forward(nan_x, nan_w, {}, plain, empty({1, 64, 18, 18}, {bfloat16}, last));
    table.backward_weight(nan_x, poisoned({1, 64, 18, 18}, bfloat16, last), plain,
                          empty_like(nan_w), {});
    const std::int64_t to = (width + 4 - 3) / 3 + 1;
    check({{3, 42, width}, {12, 14, 3}, {3, 12, to}, wide}, bfloat16, float32, last, last, false,
          4e-3, mixed());
  }
}

// oneDNN 3.7.2 returns a wrong output for the first case, whose padding holds whole windows.
TEST(Convolution, WindowsInThePaddingOfGroups) {
  const ConvOptions deep{{2, 2, 1}, {3, 3, 3}, {1, 2, 1}, 20};
  for (const Case& c :
       {Case{{3, 20, 1, 7, 5}, {40, 1, 3, 2, 3}, {3, 40, 3, 6, 9}, deep},
        Case{{3, 20, 1, 7, 5}, {20, 1, 3, 2, 3}, {3, 20, 3, 6, 9}, deep},
        Case{{3, 20, 1, 5}, {40, 1, 3, 3}, {3, 40, 3, 9}, {{2, 1}, {3, 3}, {1, 1}, 20}}})
    for (const MemoryFormat format : formats) {
      check(c, float32, float32, format, format, false, single(), single());
      check(c, bfloat16, bfloat16, format, format, true, brain(), brain());
    }
}

// oneDNN 3.7.2 returns wrong outputs for these, which are single columns.
TEST(Convolution, SingleColumnsOfOneChannel) {
  for (const Case& c :
       {Case{{2, 1, 7, 5}, {1, 1, 3, 3}, {2, 1, 3, 1}, {{1, 3}, {0, 0}, {2, 1}, 1}},
        Case{{1, 1, 8, 5}, {4, 1, 1, 3}, {1, 4, 8, 1}, {{1, 3}, {0, 0}, {1, 1}, 1}},
        Case{{2, 3, 8, 5}, {9, 1, 2, 4}, {2, 9, 5, 1}, {{1, 2}, {0, 0}, {3, 1}, 3}}})
    for (const MemoryFormat format : formats) {
      check(c, float32, float32, format, format, false, single(), single());
      check(c, bfloat16, bfloat16, format, format, true, brain(), brain());
    }
}

// Some shapes of ResNets, which oneDNN's fastest kernels compute. Two threads cut those with large
// weights by channels, the others by images.
TEST(Convolution, ShapesOfResNets) {
  const auto square = [](std::int64_t n, std::int64_t in, std::int64_t size, std::int64_t out,
                         std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
    const std::int64_t to = (size + 2 * padding - kernel) / stride + 1;
    return Case{{n, in, size, size},
                {out, in, kernel, kernel},
                {n, out, to, to},
                {{stride, stride}, {padding, padding}, {1, 1}, 1}};
  };
  for (const Case& c : {square(2, 1, 28, 16, 3, 1, 1), square(1, 16, 14, 32, 3, 2, 1),
                        square(2, 16, 14, 32, 1, 2, 0), square(1, 3, 32, 32, 7, 2, 3),
                        square(1, 64, 7, 64, 3, 1, 1), square(3, 64, 7, 128, 1, 1, 0),
                        square(3, 64, 6, 96, 3, 2, 1)})
    for (MemoryFormat format : formats)
      for (const int count : {1, 2}) {
        const Threads threads(count);
        check(c, float32, float32, format, format, count == 2, single(), single());
        check(c, bfloat16, bfloat16, format, format, count == 2, brain(), brain());
        if (count == 2)
          check(c, bfloat16, float32, format, formats[pick(0, 1)], true, brain(), mixed());
      }
}

TEST(Convolution, ReferenceByHand) {
  // One channel, kernel (1 2), stride 2, padding 1 on (3 4 5): windows (0 3), (4 5), the last
  // column is not reached.
  const ConvOptions options{{2}, {1}, {1}, 1};
  const Tensor x = tensor({3, 4, 5}, {1, 1, 3}, {float64}),
               w = tensor({1, 2}, {1, 1, 2}, {float64});
  const Tensor bias = tensor({0.5}, {float64}), y = poisoned({1, 1, 2}, float64);
  const auto& table = test::convolution();
  table.forward(x, w, bias, options, y);
  EXPECT_EQ(to_vector(y), (std::vector{6.5, 14.5}));
  const Tensor dy = tensor({10, 100}, {1, 1, 2}, {float64}), dx = poisoned({1, 1, 3}, float64),
               dw = poisoned({1, 1, 2}, float64), db = poisoned({1}, float64);
  table.backward_input(dy, w, options, dx);
  table.backward_weight(x, dy, options, dw, db);
  EXPECT_EQ(to_vector(dx), (std::vector<double>{20, 100, 200}));
  EXPECT_EQ(to_vector(dw), (std::vector<double>{400, 530}));
  EXPECT_EQ(to_vector(db), (std::vector<double>{110}));
}

TEST(Convolution, EmptyBatch) {
  const auto& table = test::convolution();
  for (DType dtype : test::trained_dtypes()) {
    const ConvOptions options{{1, 1}, {1, 1}, {1, 1}, 1};
    const Tensor x = empty({0, 3, 8, 8}, {dtype}), y = empty({0, 5, 8, 8}, {dtype}),
                 w = normal({5, 3, 3, 3}, dtype);
    const Tensor dw = poisoned(w.shape(), dtype), db = poisoned({5}, dtype);
    table.forward(x, w, {}, options, y);
    table.backward_input(y, w, options, x);
    table.backward_weight(x, y, options, dw, db);
    for (const Tensor& gradient : {dw, db})
      for (double value : to_vector(gradient)) EXPECT_EQ(value, 0);
  }
}

TEST(Convolution, RefusesOtherDtypes) {
  for (DType dtype : {float16, int64}) {
    if (dtype == float16 && test::test_device().is_cuda()) continue;
    const Tensor x = empty({1, 1, 4, 4}, {dtype}), w = empty({1, 1, 3, 3}, {dtype}),
                 y = empty({1, 1, 2, 2}, {dtype});
    EXPECT_THROW(test::convolution().forward(x, w, {}, {{1, 1}, {0, 0}, {1, 1}, 1}, y), DTypeError);
  }
}

// Ranks may be threads: primitives and scratch memory must not be shared between them.
TEST(Convolution, FromSeveralThreadsAtOnce) {
  const ConvOptions options{{1, 1}, {1, 1}, {1, 1}, 1};
  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const Tensor x = normal({4, 24, 9, 9}, float32, last), w = normal({40, 24, 3, 3}, float32);
  const Tensor expected = poisoned({4, 40, 9, 9}, float32, last);
  const auto& table = test::convolution();
  table.forward(x, w, {}, options, expected);
  std::vector<double> errors(4, 1);
  std::vector<std::thread> threads;
  for (double& error : errors)
    threads.emplace_back([&] {
      set_num_threads(1);
      error = 0;
      for (int i = 0; i < 20; ++i) {
        const Tensor y = poisoned({4, 40, 9, 9}, float32, last);
        table.forward(x, w, {}, options, y);
        error = std::max(error, relative_error(y, expected));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (double error : errors) EXPECT_LE(error, 1e-6);
}

}  // namespace
}  // namespace tutti::convolution_test
