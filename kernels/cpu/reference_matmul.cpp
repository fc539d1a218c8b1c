// reference::matmul, compiled for each level of processors; dispatch.cpp defines the function
// itself.
#include "reference_matmul.h"

#include "../../core/parallel.h"

#include <algorithm>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

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
