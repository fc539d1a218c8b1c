// Matrix products by oneDNN.
#include "onednn.h"

#include "onednn_primitive.h"
#include "onednn_shares.h"

#include <algorithm>

namespace tutti::kernels::cpu::onednn {
namespace {

Desc matrix_desc(const Tensor& t, DType dtype) {
  memory::dims sizes = dims_of(t.shape()), strides = dims_of(t.strides());
  // A batch dimension that is expanded in the tensor broadcasts in oneDNN.
  for (std::size_t d = 0; d + 2 < sizes.size(); ++d)
    if (strides[d] == 0) strides[d] = sizes[d] = 1;
  // Strides of dimensions of size 1 are arbitrary, but some of oneDNN's kernels read them. They are
  // replaced by the strides of a dense matrix.
  const std::size_t column = sizes.size() - 1, row = column - 1;
  if (sizes[row] == 1) strides[row] = strides[column] == 1 ? sizes[column] : 1;
  if (sizes[column] == 1) strides[column] = strides[row] == 1 ? sizes[row] : 1;
  return Desc(sizes, type_of(dtype), strides);
}

// Describes a bias as a tensor of the rank of `out` that broadcasts.
Desc bias_desc(const Tensor& bias, const Tensor& out) {
  if (!bias.defined()) return {};
  memory::dims sizes(static_cast<std::size_t>(out.rank()), 1);
  sizes.back() = bias.numel();
  return Desc(sizes, type_of(bias.dtype()), dims_of(dense_strides(Shape(sizes))));
}

// Entries `range` of dimension `dim`, in which t may have one entry for all.
Tensor part_of(const Tensor& t, int dim, const Range& range) {
  if (!t.defined() || t.shape()[dim] == 1) return t;
  Shape shape = t.shape();
  shape[dim] = range.size();
  return t.alias(shape, t.strides(), t.offset() + range.begin * t.strides()[dim]);
}

// A product, or what one call computes of it.
struct Product {
  Tensor a, b, bias, out;

  int row() const { return out.rank() - 2; }
  int column() const { return out.rank() - 1; }
};

// The sizes that decide how the product is divided into blocks of `out`.
Work work_of_blocks(const Product& p) {
  constexpr std::int64_t rows_at_a_time = 16, columns_at_a_time = 16;
  Work work{
      .images = p.row() > 0 ? p.out.shape()[0] : 1,
      .rows = p.out.size(-2),
      .channels = p.out.size(-1),
      .row_unit = rows_at_a_time,
      .channel_unit = columns_at_a_time,
      .multiplications = static_cast<double>(p.out.numel()) * static_cast<double>(p.a.size(-1)),
      .x = static_cast<double>(p.a.numel()),
      .w = static_cast<double>(p.b.numel()),
      .y = static_cast<double>(p.out.numel())};
  if (p.row() > 0 && p.b.shape()[0] > 1) work.x += std::exchange(work.w, 0);  // one for each image
  return work;
}

// The same for summands of a small `out`, each of a part of the inner dimension.
Work work_of_summands(const Product& p) {
  constexpr std::int64_t fewest_summed = 64;
  return {.rows = p.a.size(-1),
          .row_unit = fewest_summed,
          .multiplications = static_cast<double>(p.out.numel()) * static_cast<double>(p.a.size(-1)),
          .x = static_cast<double>(p.a.numel() + p.b.numel()),
          .w = static_cast<double>(p.out.numel()),
          .adds_rows = true};
}

Product block_of(const Product& p, const Block& block) {
  const auto matrices = [&](const Tensor& t) {
    return p.row() > 0 ? part_of(t, 0, block.images) : t;
  };
  return {part_of(matrices(p.a), p.row(), block.rows),
          part_of(matrices(p.b), p.column(), block.channels), part_of(p.bias, 0, block.channels),
          part_of(part_of(matrices(p.out), p.row(), block.rows), p.column(), block.channels)};
}

// The first summand has the bias.
Product summand_of(const Product& p, const Block& block) {
  return {part_of(p.a, p.column(), block.rows), part_of(p.b, p.row(), block.rows),
          block.rows.begin == 0 ? p.bias : Tensor(), p.out};
}

// Adds what computes `part` of a product, into a copy of `out` if `copy` says which.
void add_product(Plan& plan, const Product& whole, const Product& part,
                 std::optional<std::int64_t> copy) {
  const auto operand = [](std::size_t number, const Tensor& t, const Tensor& all, Desc desc) {
    return Operand{number, bytes_of(t.offset() - all.offset(), all.dtype()), std::move(desc), {}};
  };
  // Both factors have the dtype of `a`: a reorder converts a float32 `b`.
  const DType dtype = part.a.dtype();
  const Desc a = matrix_desc(part.a, dtype), b = matrix_desc(part.b, dtype),
             out = matrix_desc(part.out, copy ? float32 : part.out.dtype()),
             bias = bias_desc(part.bias, part.out);
  const auto product = describe<dnnl::matmul>(a, b, bias, out);
  Operand to = operand(2, part.out, whole.out, out);
  to.copy = copy;
  plan.add_primitive(product);
  plan.add(DNNL_ARG_SRC, operand(0, part.a, whole.a, a), product.src_desc());
  plan.add(DNNL_ARG_WEIGHTS, operand(1, part.b, whole.b, matrix_desc(part.b, part.b.dtype())),
           product.weights_desc());
  plan.add(DNNL_ARG_DST, to, product.dst_desc());
  if (part.bias.defined())
    plan.add(DNNL_ARG_BIAS, operand(3, part.bias, whole.bias, bias), product.bias_desc());
}

void add_product(Plan& plan, int threads, const Product& p) {
  const Work blocks = work_of_blocks(p), summands = work_of_summands(p);
  std::vector<Blocks> shares = divide(summands, threads);
  const bool sums = p.out.rank() == 2 && p.out.is_contiguous() && shares.size() > 1 &&
                    least_cost(summands, threads) < least_cost(blocks, threads);
  if (!sums) shares = divide(blocks, threads);
  if (sums) plan.add_sum(2, p.out.numel(), p.out.dtype(), copies_of(shares));
  std::int64_t next = 0;
  for (const Blocks& share : shares) {
    plan.add_share();
    for (const Block& block : share)
      add_product(plan, p, sums ? summand_of(p, block) : block_of(p, block),
                  sums ? std::optional(next++) : std::nullopt);
  }
}

}  // namespace

bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  return run_cached("matmul", PlanKey('p', {a, b, bias, out}),
                    {pointer(a), pointer(b), pointer(out), pointer(bias)},
                    [&](Plan& plan, int threads) {
                      add_product(plan, threads, {a, b, bias, out});
                    });
}

}  // namespace tutti::kernels::cpu::onednn
