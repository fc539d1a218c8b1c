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
  std::int64_t n, k;
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
    for (int i = 0; i < rows; ++i) L::put(p.out.at(first + i, j), sums[i]);
  }
  for (; j < p.n; ++j)
    for (int i = 0; i < rows; ++i) {
      float sum = p.bias ? p.bias[j] : 0;
      for (std::int64_t l = 0; l < p.k; ++l) sum += *p.a.at(first + i, l) * *p.b.at(l, j);
      *p.out.at(first + i, j) = sum;
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
    *p.out.at(i, j) = sum + total(sums);
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

// Reads a row of a matrix as float64, and writes one. They are called through pointers, because a
// product for each combination of dtypes would be 81 times the same code.
using Row = std::vector<double>;
template <class T>
void load_row(const void* data, std::int64_t offset, std::int64_t step, Row& row) {
  const T* from = static_cast<const T*>(data);  // null where the matrix has no elements
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<double>(from[offset + static_cast<std::int64_t>(i) * step]);
}
template <class T>
void store_row(void* data, std::int64_t offset, std::int64_t step, const Row& row) {
  T* to = static_cast<T*>(data);
  for (std::size_t i = 0; i < row.size(); ++i)
    to[offset + static_cast<std::int64_t>(i) * step] = T(static_cast<Accumulate<T>>(row[i]));
}

auto loader_of(const Tensor& t) {
  decltype(&load_row<float>) load = nullptr;
  dispatch(RealTypes{}, t.dtype(), "matmul", [&]<class T>() { load = load_row<T>; });
  return load;
}
auto storer_of(const Tensor& t) {
  decltype(&store_row<float>) store = nullptr;
  dispatch(RealTypes{}, t.dtype(), "matmul", [&]<class T>() { store = store_row<T>; });
  return store;
}

}  // namespace

bool small_matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  constexpr std::int64_t most = 16384;
  if (a.dtype() != float32 || out.rank() != 2) return false;
  const std::int64_t m = out.shape()[0], n = out.shape()[1], k = a.shape()[1];
  if (m > most || n > most || k > most || m * n > most || m * n * k > most) return false;
  const Problem p{Matrix(a), Matrix(b), Matrix(out), bias.defined() ? bias.data<float>() : nullptr,
                  n,         k};
  if (n > 1 && p.out.column != 1) return false;
  const tutti::detail::DenormalScope denormals;
  if (n == 1 || k == 0 || p.b.column == 1) {  // neither a nor b is read where k is 0
    std::int64_t i = 0;
    for (; i + 4 <= m; i += 4) multiply_by_rows<4>(p, i);
    for (; i < m; ++i) multiply_by_rows<1>(p, i);
    return true;
  }
  if (p.b.row != 1 || p.a.column != 1) return false;
  for (std::int64_t i = 0; i < m; ++i) multiply_by_columns(p, i);
  return true;
}

void reference_matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  const int rows = out.rank() - 2, columns = rows + 1;
  const std::int64_t m = out.shape()[rows], n = out.shape()[columns], k = a.shape()[columns];
  const auto load_a = loader_of(a), load_b = loader_of(b);
  const auto store = storer_of(out);
  Row start(static_cast<std::size_t>(n));
  if (bias.defined()) loader_of(bias)(bias.raw(), 0, bias.strides()[0], start);
  const void *a_data = a.raw(), *b_data = b.raw();
  void* out_data = out.raw();
  const std::int64_t grain = 16384 / std::max<std::int64_t>(n * k, 1);
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    Row sum, b_row(start.size()), a_row(static_cast<std::size_t>(k));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / m, row = i % m;
      load_a(a_data, matrix_offset(a, out, batch) + row * a.strides()[rows], a.strides()[columns],
             a_row);
      sum = start;
      const std::int64_t b_offset = matrix_offset(b, out, batch);
      for (std::int64_t l = 0; l < k; ++l) {
        load_b(b_data, b_offset + l * b.strides()[rows], b.strides()[columns], b_row);
        const double factor = a_row[static_cast<std::size_t>(l)];
        for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += factor * b_row[j];
      }
      store(out_data, matrix_offset(out, out, batch) + row * out.strides()[rows],
            out.strides()[columns], sum);
    }
  };
  parallel_for(product(out.shape(), 0, rows) * m, grain, multiply);
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
