// Matrix products of operands in layouts that no library knows: gaps, any order of dimensions, results by columns.
#include "kernels/compare.h"
#include "kernels/random_layout.h"
#include "kernels/tables.h"

#include <tutti/kernels/cpu/reference_matmul.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using testing::normal;
using testing::pick;
using testing::poisoned;
using testing::relative_error;

TEST(MatmulStrides, AnyLayout) {
  Generator generator(static_cast<std::uint64_t>(pick(0, 1 << 30)));
  for (int i = 0; i < 60; ++i) {
    const std::int64_t m = pick(1, 9), n = pick(1, 9), k = pick(1, 12), first = pick(1, 3), second = pick(1, 3);
    const bool with_bias = pick(0, 1);
    const auto activation = pick(0, 1) ? kernels::Activation::relu : kernels::Activation::none;
    for (const DType dtype : testing::trained_dtypes()) {
      const auto laid_out = [&](const Shape& shape) {
        return testing_support::random_layout(normal(shape, dtype), generator);
      };
      const Tensor a = laid_out({first, pick(0, 2) ? second : 1, m, k}),
                   b = laid_out({pick(0, 2) ? first : 1, second, k, n});
      const Tensor out = testing_support::random_layout(poisoned({first, second, m, n}, dtype), generator);
      const Tensor bias = with_bias ? normal({n}, dtype) : Tensor(), expected = poisoned(out.shape(), float64);
      testing::matmul().matmul(a, b, {bias, activation}, out);
      kernels::cpu::reference::matmul(a.to(float64), b.to(float64), {with_bias ? bias.to(float64) : bias, activation},
                                      expected);
      EXPECT_LE(relative_error(out, expected), dtype == float64 ? 1e-13 : dtype == float32 ? 2e-6 : 4e-3)
          << "a " << to_string(a.strides()) << " b " << to_string(b.strides()) << " out " << to_string(out.strides());
    }
  }
}

}  // namespace
}  // namespace tutti
