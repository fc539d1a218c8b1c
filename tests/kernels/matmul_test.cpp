// Matrix product kernels: oneDNN's against the plain float64 reference over random sizes, batches
// and layouts, and the reference against numbers worked out by hand.
#include "kernels/compare.h"
#include "kernels/random_layout.h"
#include "kernels/tables.h"

#include <tutti/kernels/cpu/reference.h>

#include <gtest/gtest.h>

namespace tutti::matmul_test {
namespace {

using test::normal;
using test::pick;
using test::poisoned;
using test::relative_error;
using test::Threads;

// A tensor (..., rows, columns) in row-major or column-major order.
Tensor matrix(Shape shape, DType dtype, bool by_columns) {
  if (!by_columns) return normal(shape, dtype);
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return normal(shape, dtype).transpose(-1, -2);
}

void check(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
           double tolerance) {
  SCOPED_TRACE("a " + to_string(a.shape()) + to_string(a.strides()) + " b " + to_string(b.shape()) +
               to_string(b.strides()) + " out " + to_string(out.strides()) + " " +
               to_string(a.dtype()));
  test::matmul(a, b, bias, out);
  const Tensor expected = poisoned(out.shape(), float64);
  kernels::cpu::reference::matmul(a.to(float64), b.to(a.dtype()).to(float64),
                                  bias.defined() ? bias.to(float64) : bias, expected);
  EXPECT_LE(relative_error(out, expected), tolerance);
}

TEST(Matmul, AgreesWithTheReference) {
  for (int i = 0; i < 60; ++i) {
    const Threads threads(i < 10 ? 2 : 1);
    const std::int64_t m = pick(1, 40), n = pick(1, 40), k = pick(1, 70);
    Shape a_shape, b_shape, shape;
    for (std::int64_t d = pick(0, 2); d > 0; --d) {
      const std::int64_t size = pick(1, 3),
                         which = pick(0, 3);  // a batch dimension of either may broadcast
      a_shape.push_back(which == 1 ? 1 : size);
      b_shape.push_back(which == 2 ? 1 : size);
      shape.push_back(size);
    }
    for (std::int64_t size : {m, k}) a_shape.push_back(size);
    for (std::int64_t size : {k, n}) b_shape.push_back(size);
    for (std::int64_t size : {m, n}) shape.push_back(size);
    const bool a_turned = pick(0, 1), b_turned = pick(0, 1), with_bias = pick(0, 1);
    const Tensor joined = with_bias ? normal({n}, float32) : Tensor(), no_bias;
    const auto run = [&](DType a, DType b, const Tensor& bias, DType out, double tolerance) {
      check(matrix(a_shape, a, a_turned), matrix(b_shape, b, b_turned), bias, poisoned(shape, out),
            tolerance);
    };
    run(float32, float32, joined, float32, 2e-6);
    run(bfloat16, bfloat16, joined, bfloat16, 4e-3);
    run(bfloat16, float32, joined, bfloat16, 4e-3);
    run(bfloat16, bfloat16, no_bias, float32, 1e-5);
    if (test::test_device().is_cpu())
      continue;  // whose float64 is the reference itself, and has no float16
    run(float64, float64, joined, float64, 1e-13);
    run(float16, float16, joined, float16, 1e-3);
    run(float16, float32, joined, float16, 1e-3);
    run(float16, float16, no_bias, float32, 1e-5);
  }
}

// Products of one shape that differ otherwise: a cached primitive must not serve another product.
TEST(Matmul, BiasesAreNotMixedUp) {
  for (const DType dtype : test::trained_dtypes()) {
    const Tensor a = normal({9, 20}, dtype), b = normal({20, 17}, dtype),
                 out = poisoned({9, 17}, dtype);
    const double tolerance = dtype == float64 ? 1e-13 : dtype == float32 ? 2e-6 : 4e-3;
    for (const Tensor& bias : {normal({17}, dtype), Tensor(), normal({17}, dtype)})
      check(a, b, bias, out, tolerance);
  }
}

TEST(Matmul, ExpandedBatch) {
  const Tensor a = normal({1, 4, 5}, float32).expand({3, 4, 5}), b = normal({3, 5, 2}, float32);
  check(a, b, {}, poisoned({3, 4, 2}, float32), 2e-6);
}

// Along a dimension of the result, neither factor has more than one matrix.
TEST(Matmul, BothFactorsRepeatTheirMatrices) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    const double tolerance = dtype == bfloat16 ? 4e-3 : 2e-6;
    const Tensor a = normal({1, 1, 4, 5}, dtype), b = normal({1, 1, 5, 2}, dtype),
                 bs = normal({1, 2, 5, 2}, dtype);
    const Tensor out = poisoned({3, 2, 4, 2}, dtype);
    check(a.expand({3, 2, 4, 5}), b, {}, out, tolerance);
    check(a, b.expand({3, 2, 5, 2}), {}, out, tolerance);
    check(a.expand({3, 2, 4, 5}), b.expand({3, 2, 5, 2}), {}, out, tolerance);
    check(a.expand({3, 1, 4, 5}), b.expand({1, 2, 5, 2}), {}, out, tolerance);
    check(a, bs.expand({3, 2, 5, 2}), {}, out, tolerance);
    check(a.expand({3, 1, 4, 5}), bs, {}, out, tolerance);
  }
}

TEST(Matmul, RowsOfALargerMatrix) {
  const Tensor a = normal({8, 40}, float32).slice(1, 3, 20),
               b = normal({30, 64}, float32).slice(0, 2, 19).slice(1, 8, 40);
  check(a, b, {}, poisoned({8, 32}, float32), 2e-6);
  check(b.transpose(0, 1), a.transpose(0, 1), {}, poisoned({32, 8}, float32), 2e-6);
}

// Layouts that no library knows: gaps, any order of dimensions, column-major results.
TEST(Matmul, AnyLayout) {
  Generator generator(static_cast<std::uint64_t>(pick(0, 1 << 30)));
  for (int i = 0; i < 60; ++i) {
    const std::int64_t m = pick(1, 9), n = pick(1, 9), k = pick(1, 12), first = pick(1, 3),
                       second = pick(1, 3);
    const bool with_bias = pick(0, 1);
    for (const DType dtype : test::trained_dtypes()) {
      const auto laid_out = [&](const Tensor& t) { return test::random_layout(t, generator); };
      const Tensor a = laid_out(normal({first, pick(0, 2) ? second : 1, m, k}, dtype)),
                   b = laid_out(normal({pick(0, 2) ? first : 1, second, k, n}, dtype)),
                   out = laid_out(poisoned({first, second, m, n}, dtype));
      check(a, b, with_bias ? normal({n}, dtype) : Tensor(), out,
            dtype == float64   ? 1e-13
            : dtype == float32 ? 2e-6
                               : 4e-3);
    }
  }
}

// oneDNN refused this product: the stride 1 of the only row is not a valid leading dimension.
TEST(Matmul, StrideOfTheOnlyRow) {
  check(normal({1, 4}, float32), normal({9, 8}, float32).slice(1, 0, 4).transpose(0, 1), {},
        poisoned({9, 1}, float32).transpose(0, 1), 2e-6);
}

TEST(Matmul, ReferenceByHand) {
  const Tensor a = tensor({1, 2, 3, 4, 5, 6}, {2, 3}, {float64}),
               b = tensor({1, 0, 0, 1, 10, 100}, {3, 2}, {float64});
  const Tensor out = poisoned({2, 2}, float64);
  test::matmul(a, b, {tensor({1000, 2000}, {float64})}, out);
  EXPECT_EQ(to_vector(out), (std::vector<double>{1031, 2302, 1064, 2605}));
}

TEST(Matmul, EmptySizes) {
  for (DType dtype : test::trained_dtypes()) {
    test::matmul(empty({0, 3}, {dtype}), normal({3, 4}, dtype), {}, empty({0, 4}, {dtype}));
    test::matmul(empty({2, 0, 3}, {dtype}), normal({2, 3, 4}, dtype), {},
                 empty({2, 0, 4}, {dtype}));
    const Tensor none = poisoned({2, 4}, dtype), bias = normal({4}, dtype);
    const Tensor every_second = empty({8, 0}, {dtype}).slice(0, 0, 8, 2).transpose(0, 1);
    for (const Tensor& b : {empty({0, 4}, {dtype}), every_second}) {
      test::matmul(empty({2, 0}, {dtype}), b, {bias}, none);  // the gradient of an empty batch
      EXPECT_EQ(to_vector(none), to_vector(cat({bias, bias}, 0)));
      test::matmul(empty({2, 0}, {dtype}), b, {}, none);
      EXPECT_EQ(to_vector(none), std::vector<double>(8, 0));
    }
  }
}

TEST(Matmul, RefusesOtherDtypes) {
  for (DType dtype : {float16, int64}) {
    if (dtype == float16 && test::test_device().is_cuda()) continue;
    const Tensor a = empty({2, 2}, {dtype});
    EXPECT_THROW(test::matmul(a, a, {}, empty({2, 2}, {dtype})), DTypeError);
  }
}

}  // namespace
}  // namespace tutti::matmul_test
