// The product of two small float32 matrices. oneDNN multiplies large ones faster, but its look-up
// of a primitive costs about a microsecond, in which these loops multiply some 10,000 pairs.
#include "small_matmul.h"

#include <algorithm>

#include "vector.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

using L = Vector<float>;

// A matrix whose elements (i, j) are at data[i * row + j * column].
struct Matrix {
  float* data;
  std::int64_t row, column;

  explicit Matrix(const Tensor& t)
      : data(t.data<float>()), row(t.strides()[0]), column(t.strides()[1]) {}
  float* at(std::int64_t i, std::int64_t j) const { return data + i * row + j * column; }
};

struct Problem {
  Matrix a, b, out;
  const float* bias;  // null: none
  bool relu;
  std::int64_t n, k;

  // Keeps NaN, so that a diverged network does not look healthy.
  float finish(float z) const { return relu && z <= 0 ? 0 : z; }
  void store(float* to, const L::V& z) const {
    float values[L::width];
    L::put(values, z);
    for (std::int64_t i = 0; i < L::width; ++i) to[i] = finish(values[i]);
  }
};

// Computes `rows` rows of the product, where the rows of b are dense: each step adds a multiple of
// a row of b to every row. Several rows at a time hide the latency of the additions.
template <int rows>
void multiply_by_rows(const Problem& p, std::int64_t first) {
  std::int64_t j = 0;
  for (; j + L::width <= p.n; j += L::width) {
    L::V sums[rows];
    for (auto& sum : sums) sum = p.bias ? L::get(p.bias + j) : L::V{};
    for (std::int64_t l = 0; l < p.k; ++l) {
      const L::V b = L::get(p.b.at(l, j));
      for (int i = 0; i < rows; ++i) sums[i] += *p.a.at(first + i, l) * b;
    }
    for (int i = 0; i < rows; ++i) p.store(p.out.at(first + i, j), sums[i]);
  }
  for (; j < p.n; ++j)
    for (int i = 0; i < rows; ++i) {
      float sum = p.bias ? p.bias[j] : 0;
      for (std::int64_t l = 0; l < p.k; ++l) sum += *p.a.at(first + i, l) * *p.b.at(l, j);
      *p.out.at(first + i, j) = p.finish(sum);
    }
}

// Computes a row of the product, where the rows of a and the columns of b are dense: each element
// is a dot product.
void multiply_by_columns(const Problem& p, std::int64_t i) {
  const float* a = p.a.at(i, 0);
  for (std::int64_t j = 0; j < p.n; ++j) {
    const float* b = p.b.at(0, j);
    L::V sums{};
    std::int64_t l = 0;
    for (; l + L::width <= p.k; l += L::width) sums += L::get(a + l) * L::get(b + l);
    float sum = p.bias ? p.bias[j] : 0;
    for (; l < p.k; ++l) sum += a[l] * b[l];
    *p.out.at(i, j) = p.finish(sum + total(sums));
  }
}

}  // namespace

bool small_matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out) {
  constexpr std::int64_t most = 16384;
  if (a.dtype() != float32 || out.rank() != 2) return false;
  const std::int64_t m = out.shape()[0], n = out.shape()[1], k = a.shape()[1];
  if (m > most || n > most || k > most || m * n > most || m * n * k > most) return false;
  const Tensor& bias = epilogue.bias;
  const Problem p{Matrix(a),
                  Matrix(b),
                  Matrix(out),
                  bias.defined() ? bias.data<float>() : nullptr,
                  epilogue.activation == Activation::relu,
                  n,
                  k};
  if (n > 1 && p.out.column != 1) return false;
  if (n == 1 || p.b.column == 1) {
    std::int64_t i = 0;
    for (; i + 4 <= m; i += 4) multiply_by_rows<4>(p, i);
    for (; i < m; ++i) multiply_by_rows<1>(p, i);
    return true;
  }
  if (p.b.row != 1 || p.a.column != 1) return false;
  for (std::int64_t i = 0; i < m; ++i) multiply_by_columns(p, i);
  return true;
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
