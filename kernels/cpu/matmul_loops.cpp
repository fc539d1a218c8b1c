// The matrix products that need no library, compiled for each level of processors: that of two
// small float32 matrices, and the reference for any dtype and strides. oneDNN multiplies large
// matrices faster, but its look-up of a primitive costs about a microsecond, in which the loops for
// small ones multiply some 10,000 pairs. matmul.cpp says what the functions do.
#include "../options.h"

#include "../../core/parallel.h"

#include <algorithm>
#include <vector>

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

// Where the matrix of batch index `index` (row-major in the batch sizes of `out`) starts in `t`.
std::int64_t matrix_offset(const Tensor& t, const Tensor& out, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = out.rank() - 3; d >= 0; --d) {
    if (t.shape()[d] != 1) offset += index % out.shape()[d] * t.strides()[d];
    index /= out.shape()[d];
  }
  return offset;
}

template <class T>
void load_row(const T* from, std::int64_t step, std::vector<double>& row) {
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<double>(from[static_cast<std::int64_t>(i) * step]);
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
  const tutti::detail::DenormalScope denormals;
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

void reference_matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                      const Tensor& out) {
  const Tensor& bias = epilogue.bias;
  const bool relu = epilogue.activation == Activation::relu;
  const int rows = out.rank() - 2, columns = rows + 1;
  const std::int64_t m = out.shape()[rows], n = out.shape()[columns], k = a.shape()[columns];
  dispatch(RealTypes{}, a.dtype(), "matmul", [&]<class A>() {
    dispatch(RealTypes{}, b.dtype(), "matmul", [&]<class B>() {
      dispatch(RealTypes{}, out.dtype(), "matmul", [&]<class O>() {
        const A* a_data = a.data<A>();
        const B* b_data = b.data<B>();
        O* out_data = out.data<O>();
        const std::int64_t grain =
            std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(n * k, 1));
        parallel_for(
            product(out.shape(), 0, rows) * m, grain, [&](std::int64_t begin, std::int64_t end) {
              std::vector<double> start(static_cast<std::size_t>(n)), sum, b_row(start),
                  a_row(static_cast<std::size_t>(k));
              if (bias.defined())
                dispatch(RealTypes{}, bias.dtype(), "matmul",
                         [&]<class C>() { load_row(bias.data<C>(), bias.strides()[0], start); });
              for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t batch = i / m, row = i % m;
                load_row(a_data + matrix_offset(a, out, batch) + row * a.strides()[rows],
                         a.strides()[columns], a_row);
                sum = start;
                for (std::int64_t l = 0; l < k; ++l) {
                  load_row(b_data + matrix_offset(b, out, batch) + l * b.strides()[rows],
                           b.strides()[columns], b_row);
                  const double factor = a_row[static_cast<std::size_t>(l)];
                  for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += factor * b_row[j];
                }
                O* to = out_data + matrix_offset(out, out, batch) + row * out.strides()[rows];
                for (std::int64_t j = 0; j < n; ++j) {
                  const double z = sum[static_cast<std::size_t>(j)];
                  to[j * out.strides()[columns]] =
                      O(static_cast<Accumulate<O>>(relu && z <= 0 ? 0 : z));
                }
              }
            });
      });
    });
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
