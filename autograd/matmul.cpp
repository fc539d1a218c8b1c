#include "matmul.h"

#include "../core/create.h"
#include "../kernels/kernels.h"
#include "operation.h"
#include "record.h"

#include <algorithm>

namespace tutti {
namespace {

// Kernels take matrices whose rows or columns are dense. Returns such a tensor itself, and a copy
// of any other (a slice with a step, an expanded row).
Tensor with_dense_rows_or_columns(const Tensor& t) {
  const std::int64_t rows = t.size(-2), columns = t.size(-1);
  const std::int64_t row_step = t.strides()[t.rank() - 2], step = t.strides()[t.rank() - 1];
  const bool by_rows = (columns == 1 || step == 1) && (rows == 1 || row_step >= columns);
  const bool by_columns = (rows == 1 || row_step == 1) && (columns == 1 || step >= rows);
  return by_rows || by_columns ? t : t.contiguous();
}

Tensor multiply(const Tensor& a, const Tensor& b, const Shape& shape, DType dtype) {
  const Tensor out = empty(shape, {dtype, a.device()});
  kernels::on(a.device())
      .matmul(with_dense_rows_or_columns(a), with_dense_rows_or_columns(b), {}, out);
  return out;
}

Tensor transposed(const Tensor& t) { return t.transpose(-2, -1); }

// Returns the gradient a b of an operand `of`, where `shape` is that of the product. The gradient
// of an operand that broadcasts is a sum over batches; products of 16 bits stay in float32 until
// they are summed, so that they are rounded once.
Tensor operand_gradient(const Tensor& a, const Tensor& b, const Shape& shape, const Tensor& of) {
  const bool sums = !(shape == of.shape());
  const Tensor products = multiply(a, b, shape, sums ? accumulate_dtype(of.dtype()) : of.dtype());
  return autograd::sum_to(products, of.shape()).to(of.dtype());
}

// Multiplies two tensors of the same rank, at least 2, whose batch dimensions broadcast.
Tensor batched_matmul(const Tensor& a, const Tensor& b) {
  const auto batch_of = [](const Tensor& t) {
    return Shape(t.shape().begin(), t.shape().end() - 2);
  };
  const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), "matmul");
  const auto batch_shape = [batch](std::int64_t rows, std::int64_t columns) {
    Shape shape = batch;
    shape.push_back(rows);
    shape.push_back(columns);
    return shape;
  };
  const Tensor left = a.detach(), right = b.detach();
  return autograd::record(
      "matmul", multiply(left, right, batch_shape(a.size(-2), b.size(-1)), a.dtype()), {a, b},
      [left = autograd::Saved(left), right = autograd::Saved(right), batch_shape,
       for_a = autograd::needs_grad(a), for_b = autograd::needs_grad(b)](const Tensor& g) {
        const Tensor &x = left, &y = right;
        std::vector<Tensor> gradients(2);
        if (for_a)
          gradients[0] = operand_gradient(g, transposed(y), batch_shape(x.size(-2), x.size(-1)), x);
        if (for_b)
          gradients[1] = operand_gradient(transposed(x), g, batch_shape(y.size(-2), y.size(-1)), y);
        return gradients;
      });
}

Tensor with_leading_ones(Tensor t, int rank) {
  while (t.rank() < rank) t = t.unsqueeze(0);
  return t;
}

}  // namespace

Tensor matmul(const Tensor& a_given, const Tensor& b_given) {
  Tensor a = a_given, b = b_given;
  if (a.rank() == 0 || b.rank() == 0)
    fail<ShapeError>("matmul: expected tensors of at least one dimension, got shapes {} and {}",
                     to_string(a.shape()), to_string(b.shape()));
  autograd::expect_same_device("matmul", a, b);
  a = autocast("matmul", a);
  b = autocast("matmul", b);
  autograd::expect_same_dtype_and_device("matmul", a, b);
  if (a.size(-1) != b.size(b.rank() == 1 ? 0 : -2))
    fail<ShapeError>("matmul: shapes {} and {} do not fit: inner sizes {} and {} differ",
                     to_string(a.shape()), to_string(b.shape()), a.size(-1),
                     b.size(b.rank() == 1 ? 0 : -2));
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a = a.unsqueeze(0);
  if (column) b = b.unsqueeze(1);
  Tensor out;
  if (b.rank() == 2 && a.rank() > 2) {
    // One matrix multiplies the whole batch: this and its gradient are one large product each.
    Shape shape = a.shape();
    shape[shape.size() - 1] = b.size(1);
    out = batched_matmul(a.reshape({product(a.shape(), 0, a.rank() - 1), a.size(-1)}), b)
              .reshape(shape);
  } else {
    const int rank = std::max(a.rank(), b.rank());
    out = batched_matmul(with_leading_ones(a, rank), with_leading_ones(b, rank));
  }
  if (column) out = out.squeeze(-1);
  if (row) out = out.squeeze(column ? -1 : -2);
  return out;
}

}  // namespace tutti
