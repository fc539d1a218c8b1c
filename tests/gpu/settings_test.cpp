// Tests the switches of cuda::settings() with convolutions and matrix products.
#include "kernels/compare.h"
#include "test_device.h"

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/kernels/cpu/reference.h>
#include <tutti/kernels/kernels.h>

#include <gtest/gtest.h>

namespace tutti::settings_test {
namespace {

using test::normal;
using test::relative_error;
using test::Switch;
using test::test_device;

constexpr MemoryFormat last = MemoryFormat::channels_last;
const kernels::ConvOptions options{{1, 1}, {1, 1}, {1, 1}, 1};

// cuDNN may choose engines by Winograd's algorithm or FFT, which round more than a plain sum does.
// On normally distributed numbers, 24 channels and windows of 3 x 3, a simulation in float32 has
// relative errors of 2.6e-7 for the plain sum, 1.2e-6 for Winograd's tiles of 4 x 4 and 2.3e-6 for
// those of 6 x 6; this is four times the largest. TF32 rounds both factors to 11 bits, which gives
// 4e-4.
constexpr double single = 1e-5, tf32_error = 1e-3;

struct Convolved {
  Tensor y, dx, dw;
};
Convolved convolve(const Tensor& x, const Tensor& w, const Tensor& dy) {
  const auto& table = kernels::on(x.device()).convolution;
  const auto like = [](const Tensor& t) { return empty(t.shape(), {t.dtype(), t.device()}, last); };
  const Convolved result{like(dy), like(x), like(w)};
  table.forward(x, w, {}, options, result.y);
  table.backward_input(dy, w, options, result.dx);
  table.backward_weight(x, dy, options, result.dw, {});
  return result;
}
Convolved reference(const Tensor& x, const Tensor& w, const Tensor& dy) {
  const Tensor x64 = x.to(float64), w64 = w.to(float64), dy64 = dy.to(float64);
  const Convolved result{empty(dy.shape(), {float64}), empty(x.shape(), {float64}),
                         empty(w.shape(), {float64})};
  kernels::cpu::reference::convolution_forward(x64, w64, {}, options, result.y);
  kernels::cpu::reference::convolution_backward_input(dy64, w64, options, result.dx);
  kernels::cpu::reference::convolution_backward_weight(x64, dy64, options, result.dw, {});
  return result;
}
void expect_close(const Convolved& a, const Convolved& b, double tolerance) {
  EXPECT_LE(relative_error(a.y, b.y), tolerance);
  EXPECT_LE(relative_error(a.dx, b.dx), tolerance);
  EXPECT_LE(relative_error(a.dw, b.dw), tolerance);
}

struct Settings : ::testing::Test {
  Tensor x = normal({3, 24, 13, 11}, float32, last), w = normal({40, 24, 3, 3}, float32, last),
         dy = normal({3, 40, 13, 11}, float32, last);
  Tensor x_there = x.to(test_device()), w_there = w.to(test_device()),
         dy_there = dy.to(test_device());
};

TEST_F(Settings, Tf32RoundsAndNothingElseDoes) {
  const Convolved expected = reference(x, w, dy);
  const Tensor a = normal({70, 90}, float32), b = normal({90, 50}, float32);
  const Tensor product = empty({70, 50}, {float64}),
               there = empty({70, 50}, {float32, test_device()});
  kernels::cpu::reference::matmul(a.to(float64), b.to(float64), {}, product);
  const auto multiply = [&] {
    kernels::on(test_device()).matmul(a.to(test_device()), b.to(test_device()), {}, there);
    return relative_error(there, product);
  };
  expect_close(convolve(x_there, w_there, dy_there), expected, single);
  EXPECT_LE(multiply(), 2e-6);
  {
    const Switch tf32(cuda::settings().allow_tf32);
    expect_close(convolve(x_there, w_there, dy_there), expected, tf32_error);
    EXPECT_LE(multiply(), tf32_error);
  }
  expect_close(convolve(x_there, w_there, dy_there), expected,
               single);  // uses the first plan again
  EXPECT_LE(multiply(), 2e-6);
}

TEST_F(Settings, DeterministicGivesTheSameBits) {
  const Switch deterministic(cuda::settings().deterministic);
  const Convolved first = convolve(x_there, w_there, dy_there);
  expect_close(first, reference(x, w, dy), single);
  for (int i = 0; i < 5; ++i) {
    const Convolved again = convolve(x_there, w_there, dy_there);
    EXPECT_EQ(to_vector(again.y), to_vector(first.y));
    EXPECT_EQ(to_vector(again.dx), to_vector(first.dx));
    EXPECT_EQ(to_vector(again.dw), to_vector(first.dw));
  }
}

TEST_F(Settings, AutotuneWaitsOnceForEachShape) {
  const Switch autotune(cuda::settings().autotune);
  const std::int64_t at_first = cuda::synchronizations();
  const Convolved tuned = convolve(x_there, w_there, dy_there);
  if (!test::emulated()) {  // the emulated cuDNN has no plans to choose from
    EXPECT_GT(cuda::synchronizations(), at_first);
  }
  expect_close(tuned, reference(x, w, dy), single);
  const std::int64_t before = cuda::synchronizations();
  const Convolved again = convolve(x_there, w_there, dy_there);
  EXPECT_EQ(cuda::synchronizations(), before);
  expect_close(again, reference(x, w, dy), single);
}

}  // namespace
}  // namespace tutti::settings_test
