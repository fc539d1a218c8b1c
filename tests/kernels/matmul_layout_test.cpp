// How strided matrices are described to cuBLASLt: every layout and every batch must address the
// elements that it stands for. This needs no CUDA.
#include "kernels/compare.h"
#include "kernels/random_layout.h"

#include <tutti/kernels/cuda/matmul_layout.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti::matmul_layout_test {
namespace {

using kernels::cuda::batch_dims;
using kernels::cuda::BatchDim;
using kernels::cuda::MatrixLayout;
using kernels::cuda::transposed_layout;
using test::pick;

TEST(MatmulLayout, KnownOnes) {
  const Tensor t = empty({6, 10});
  EXPECT_EQ(transposed_layout(t), (MatrixLayout{10, 6, 10, false}));
  EXPECT_EQ(transposed_layout(t.transpose(0, 1)), (MatrixLayout{10, 6, 10, true}));
  EXPECT_EQ(transposed_layout(t.slice(1, 2, 7)), (MatrixLayout{5, 6, 10, false}));
  EXPECT_EQ(transposed_layout(t.slice(1, 3, 4)), (MatrixLayout{1, 6, 10, false}));   // one column
  EXPECT_EQ(transposed_layout(t.slice(0, 3, 4)), (MatrixLayout{10, 1, 10, false}));  // one row
  EXPECT_EQ(transposed_layout(empty({6, 1}).expand({6, 10})), std::nullopt);   // rows of one number
  EXPECT_EQ(transposed_layout(empty({1, 10}).expand({6, 10})), std::nullopt);  // rows that overlap
  EXPECT_EQ(transposed_layout(t.slice(1, 0, 10, 2).slice(0, 0, 6, 2)), std::nullopt);
}

TEST(MatmulLayout, AddressesTheTransposedMatrix) {
  Generator generator(static_cast<std::uint64_t>(pick(0, 1 << 30)));
  int said = 0;
  for (int i = 0; i < 400; ++i) {
    const Tensor t = test::random_layout(empty({pick(1, 4), pick(1, 5)}), generator);
    const auto m = transposed_layout(t);
    if (!m) continue;
    ++said;
    EXPECT_EQ(m->transposed ? m->columns : m->rows, t.size(1));
    EXPECT_EQ(m->transposed ? m->rows : m->columns, t.size(0));
    EXPECT_GE(m->leading, m->rows);  // cuBLASLt's condition
    for (std::int64_t r = 0; r < t.size(0); ++r)
      for (std::int64_t c = 0; c < t.size(1); ++c) {
        const std::int64_t there = m->transposed ? r + c * m->leading : c + r * m->leading;
        EXPECT_EQ(there, r * t.strides()[0] + c * t.strides()[1]);
      }
  }
  EXPECT_GT(said, 100);
}

// All offsets that the dimensions reach, as (a, b, out), in the order of out.
std::vector<BatchDim> offsets(const std::vector<BatchDim>& dims) {
  std::vector<BatchDim> result{{1, 0, 0, 0}};
  for (const BatchDim& d : dims) {
    std::vector<BatchDim> longer;
    for (const BatchDim& o : result)
      for (std::int64_t i = 0; i < d.count; ++i)
        longer.push_back({1, o.a + i * d.a, o.b + i * d.b, o.out + i * d.out});
    result = std::move(longer);
  }
  std::ranges::sort(result, {}, &BatchDim::out);
  return result;
}

TEST(MatmulLayout, BatchesReachEveryMatrixOnce) {
  Generator generator(static_cast<std::uint64_t>(pick(0, 1 << 30)));
  for (int i = 0; i < 300; ++i) {
    Shape a_shape, b_shape, shape;
    for (std::int64_t d = pick(0, 4); d > 0; --d) {
      const std::int64_t size = pick(1, 4), which = pick(0, 3);
      a_shape.push_back(which == 1 ? 1 : size);
      b_shape.push_back(which == 2 ? 1 : size);
      shape.push_back(size);
    }
    const int batch_rank = shape.size();
    for (Shape* s : {&a_shape, &b_shape, &shape}) s->push_back(2), s->push_back(3);
    const bool dense = pick(0, 1);
    const auto tensor_of = [&](const Shape& s) {
      return dense ? empty(s) : test::random_layout(empty(s), generator);
    };
    const Tensor a = tensor_of(a_shape), b = tensor_of(b_shape), out = tensor_of(shape);
    std::vector<BatchDim> all;
    for (int d = 0; d < batch_rank; ++d)
      all.push_back({shape[d], a_shape[d] == 1 ? 0 : a.strides()[d],
                     b_shape[d] == 1 ? 0 : b.strides()[d], out.strides()[d]});
    const std::vector<BatchDim> dims = batch_dims(a, b, out);
    EXPECT_EQ(offsets(dims), offsets(all));
    for (std::size_t d = 0; d + 1 < dims.size(); ++d) EXPECT_LE(dims[d].count, dims[d + 1].count);
    for (const BatchDim& d : dims) EXPECT_GT(d.count, 1);
  }
}

TEST(MatmulLayout, DenseBatchesBecomeOne) {
  const Tensor t = empty({2, 3, 4, 5, 6}), shared = empty({1, 1, 1, 5, 6});
  EXPECT_EQ(batch_dims(t, t, t), (std::vector<BatchDim>{{24, 30, 30, 30}}));
  EXPECT_EQ(batch_dims(t, shared, t), (std::vector<BatchDim>{{24, 30, 0, 30}}));
  EXPECT_EQ(batch_dims(t, empty({2, 1, 1, 5, 6}), t).size(), 2u);
}

}  // namespace
}  // namespace tutti::matmul_layout_test
