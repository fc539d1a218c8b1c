// The members of Tensor that make views and copies, through which a gradient flows back, and those
// that change a tensor in place.
#include "../core/create.h"
#include "../core/overlap.h"
#include "../kernels/kernels.h"
#include "functions.h"
#include "operation.h"
#include "record.h"

#include <optional>

namespace tutti {
namespace {

using autograd::record;

// Returns the strides of a view of `x` with another shape, if such a view exists: every group of
// dimensions that can be merged must split evenly into the new sizes. Neither shape has a size 0.
std::optional<Strides> view_strides(const Tensor& x, const Shape& shape) {
  Shape sizes;  // without sizes of 1, whose strides do not matter
  Strides steps;
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape()[d] == 1) continue;
    sizes.push_back(x.shape()[d]);
    steps.push_back(x.strides()[d]);
  }
  Strides strides = Dims::filled(shape.size(), 1);
  int to = shape.size() - 1;
  for (int from = sizes.size() - 1; from >= 0; --from) {
    std::int64_t merged = sizes[from], step = steps[from];
    for (; from > 0 && steps[from - 1] == sizes[from] * steps[from]; --from)
      merged *= sizes[from - 1];
    for (; to >= 0 && (merged > 1 || shape[to] == 1); --to) {
      if (merged % shape[to] != 0) return std::nullopt;
      strides[to] = step;
      step *= shape[to];
      merged /= shape[to];
    }
    if (merged != 1) return std::nullopt;
  }
  return strides;  // the dimensions that are left have size 1
}

// Replaces a size of -1 and checks that the new shape has as many elements as the tensor.
Shape infer_shape(const Tensor& x, Shape shape) {
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1 && unknown < 0) unknown = i;
    else if (shape[i] < 0)
      fail<ShapeError>("reshape: sizes must not be negative, and only one may be -1; got {}",
                       to_string(shape));
    else if (__builtin_mul_overflow(known, shape[i], &known))
      fail<ShapeError>("reshape: the number of elements of {} does not fit into 64 bits",
                       to_string(shape));
  }
  if (unknown >= 0 && known > 0 && x.numel() % known == 0) shape[unknown] = x.numel() / known;
  if ((unknown >= 0 && shape[unknown] < 0) || numel(shape) != x.numel())
    fail<ShapeError>("reshape: cannot reshape {} elements of shape {} to {}", x.numel(),
                     to_string(x.shape()), to_string(shape));
  return shape;
}

// Throws an Error unless `x` may be changed in place.
void expect_writable(const Tensor& x, const char* op) {
  if (x.requires_grad() && (grad_enabled() || !x.is_leaf()))
    fail<Error>(
        "{}: changing a tensor that {} in place would lose its gradient; use the operation that "
        "makes a new tensor, or a NoGrad scope for a leaf",
        op, x.is_leaf() ? "requires grad" : "has a history");
  if (x.has_overlapping_elements())
    fail<ShapeError>(
        "{}: elements of this tensor share memory, as those of an expanded one do; clone() it "
        "first",
        op);
}

// Throws unless `x` may be changed in place by `source`. A gradient does not flow through such a
// change: an error is better than a gradient that is silently lost.
void expect_changeable(const Tensor& x, const Tensor& source, const char* op) {
  expect_writable(x, op);
  if (autograd::needs_grad(source))
    fail<Error>(
        "{}: the source needs a gradient, which does not flow through a change in place; pass "
        "source.detach(), or use the operation that makes a new tensor",
        op);
  if (!(broadcast_shapes(x.shape(), source.shape(), op) == x.shape()))
    fail<ShapeError>("{}: shape {} does not broadcast to {}", op, to_string(source.shape()),
                     to_string(x.shape()));
  expect_no_overlap(op, x, source);
}

const Tensor& change(const Tensor& x, kernels::Binary op, const char* name, const Tensor& other) {
  expect_changeable(x, other, name);
  autograd::expect_same_dtype_and_device(name, x, other);
  autograd::expect_computable(name, x);
  kernels::on(x.device()).elementwise.binary(op, x, other, x);
  count_change(x.storage());
  return x;
}

const Tensor& change(const Tensor& x, kernels::Binary op, const char* name, double number) {
  expect_writable(x, name);
  autograd::expect_number_fits(name, x, number);
  autograd::expect_computable(name, x);
  kernels::on(x.device()).elementwise.binary_scalar(op, x, number, false, x);
  count_change(x.storage());
  return x;
}

// Returns the gradient of a view: zeros in the shape of the input, with `g` in the elements of the
// view. `view` makes that view of the new tensor.
template <class View>
Tensor gradient_of_view(const Shape& shape, const Tensor& g, View view) {
  const Tensor whole = zeros(shape, {g.dtype(), g.device()});
  view(whole).copy_(g);
  return whole;
}

}  // namespace

Tensor autograd::sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int extra = x.rank() - shape.size();
  Shape kept = Dims::filled(x.rank(), 1);
  for (int i = extra; i < x.rank(); ++i) kept[i] = shape[i - extra];
  const Tensor out = empty(kept, {x.dtype(), x.device()});
  kernels::on(x.device()).reduce.reduce(kernels::Reduction::sum, x, out);
  return out.alias(shape, dense_strides(shape), 0);
}

Tensor Tensor::reshape(Shape wanted) const {
  const Shape target = infer_shape(*this, wanted);
  if (target == shape()) return *this;
  const auto strides = numel() == 0 ? std::optional(dense_strides(target))
                                    : view_strides(*this, target);
  if (!strides) return contiguous().reshape(target);
  return record("reshape", alias(target, *strides, offset()), {*this},
                [shape = shape()](const Tensor& g) { return g.reshape(shape); });
}

Tensor Tensor::flatten(std::int64_t first, std::int64_t last) const {
  if (rank() == 0) return reshape({1});
  const int a = normalize_dim(first, rank(), "flatten"), b = normalize_dim(last, rank(), "flatten");
  if (a > b) fail<ShapeError>("flatten: first dimension {} comes after the last, {}", first, last);
  Shape target(shape().begin(), shape().begin() + a);
  target.push_back(product(shape(), a, b + 1));
  for (int i = b + 1; i < rank(); ++i) target.push_back(shape()[i]);
  return reshape(target);
}

Tensor Tensor::permute(const Dims& order) const {
  if (order.size() != rank())
    fail<ShapeError>("permute: expected {} dimensions for shape {}, got {}", rank(),
                     tutti::to_string(shape()), tutti::to_string(order));
  Shape to_shape;
  Strides to_strides;
  Dims back = Dims::filled(rank(), -1);
  for (int i = 0; i < rank(); ++i) {
    const int d = normalize_dim(order[i], rank(), "permute");
    if (back[d] >= 0)
      fail<ShapeError>("permute: dimension {} occurs twice in {}", d, tutti::to_string(order));
    back[d] = i;
    to_shape.push_back(shape()[d]);
    to_strides.push_back(strides()[d]);
  }
  return record("permute", alias(to_shape, to_strides, offset()), {*this},
                [back](const Tensor& g) { return g.permute(back); });
}

Tensor Tensor::transpose(std::int64_t a, std::int64_t b) const {
  Dims order;
  for (int i = 0; i < rank(); ++i) order.push_back(i);
  const int dims = std::max(rank(), 1);
  std::swap(order[normalize_dim(a, dims, "transpose")], order[normalize_dim(b, dims, "transpose")]);
  return permute(order);
}

Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t stop,
                     std::int64_t step) const {
  const int d = normalize_dim(dim, rank(), "slice");
  const std::int64_t size = shape()[d];
  const auto clamp = [size](std::int64_t i) {
    return std::min(std::max<std::int64_t>(i < 0 ? i + size : i, 0), size);
  };
  const std::int64_t from = clamp(start), to = std::max(from, clamp(stop));
  if (step < 1) fail<ValueError>("slice: expected a positive step, got {}", step);
  Shape to_shape = shape();
  Strides to_strides = strides();
  to_shape[d] = to > from ? (to - from - 1) / step + 1 : 0;
  if (to_shape[d] > 1) to_strides[d] *= step;  // else it is never used and might overflow
  // An empty slice reads nothing, so its offset, which might overflow, stays that of the tensor.
  const std::int64_t first = to > from ? offset() + from * strides()[d] : offset();
  return record("slice", alias(to_shape, to_strides, first), {*this},
                [=, shape = shape()](const Tensor& g) {
                  return gradient_of_view(
                      shape, g, [=](const Tensor& x) { return x.slice(d, from, to, step); });
                });
}

Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  const int d = normalize_dim(dim, rank(), "select");
  const std::int64_t i = index < 0 ? index + shape()[d] : index;
  if (i < 0 || i >= shape()[d])
    fail<ShapeError>("select: index {} is outside dimension {} of shape {}", index, d,
                     tutti::to_string(shape()));
  return slice(d, i, i + 1).squeeze(d);
}

Tensor Tensor::expand(const Shape& wanted) const {
  const int extra = wanted.size() - rank();
  if (extra < 0)
    fail<ShapeError>("expand: cannot expand shape {} to {}: too few dimensions",
                     tutti::to_string(shape()), tutti::to_string(wanted));
  Shape target = wanted;
  Strides to_strides = Dims::filled(wanted.size(), 0);
  for (int i = extra; i < wanted.size(); ++i) {
    if (target[i] == -1) target[i] = shape()[i - extra];
    if (target[i] == shape()[i - extra]) to_strides[i] = strides()[i - extra];
    else if (shape()[i - extra] != 1)
      fail<ShapeError>("expand: cannot expand shape {} to {}: only sizes of 1 can grow",
                       tutti::to_string(shape()), tutti::to_string(wanted));
  }
  return record("expand", alias(target, to_strides, offset()), {*this},
                [shape = shape()](const Tensor& g) { return autograd::sum_to(g, shape); });
}

Tensor Tensor::squeeze(std::int64_t dim) const {
  const int d = normalize_dim(dim, std::max(rank(), 1), "squeeze");
  if (rank() == 0 || shape()[d] != 1) return *this;
  Shape to_shape = shape();
  Strides to_strides = strides();
  to_shape.erase(d);
  to_strides.erase(d);
  return record("squeeze", alias(to_shape, to_strides, offset()), {*this},
                [d](const Tensor& g) { return g.unsqueeze(d); });
}

Tensor Tensor::unsqueeze(std::int64_t dim) const {
  const int d = normalize_dim(dim, rank() + 1, "unsqueeze");
  Shape to_shape = shape();
  Strides to_strides = strides();
  to_strides.insert(d, d < rank() ? shape()[d] * strides()[d] : 1);
  to_shape.insert(d, 1);
  return record("unsqueeze", alias(to_shape, to_strides, offset()), {*this},
                [d](const Tensor& g) { return g.squeeze(d); });
}

Tensor Tensor::contiguous(MemoryFormat format) const {
  const Strides exact = dense_strides(shape(), format);
  if (strides() == exact) return *this;
  // The elements may be in order already: sizes of 1 leave the format open, and exact strides fix
  // it.
  if (is_contiguous(format))
    return record("contiguous", alias(shape(), exact, offset()), {*this},
                  [](const Tensor& g) { return g; });
  const Tensor out = empty(shape(), {dtype(), device()}, format);
  out.copy_(detach());
  return record("contiguous", out, {*this}, [](const Tensor& g) { return g; });
}

Tensor Tensor::clone() const {
  const Tensor out = empty_like(detach());
  out.copy_(detach());
  return record("clone", out, {*this}, [](const Tensor& g) { return g; });
}

Tensor Tensor::to(DType wanted) const {
  if (wanted == dtype()) return *this;
  const Tensor out = empty_like(detach(), wanted);
  out.copy_(detach());
  return record("to", out, is_floating(wanted) ? std::vector{*this} : std::vector<Tensor>{},
                [from = dtype()](const Tensor& g) { return std::vector{g.to(from)}; });
}

Tensor Tensor::to(Device wanted) const {
  if (wanted == device()) return *this;
  const Tensor dense = detach().is_dense() ? detach() : detach().contiguous();
  const auto storage =
      std::make_shared<Storage>(static_cast<std::size_t>(numel()) * size_of(dtype()), wanted);
  const Tensor out(storage, shape(), dense.strides(), 0, dtype());
  copy_bytes(out.raw(), wanted, dense.raw(), device(), storage->bytes());
  return record("to", out, {*this}, [from = device()](const Tensor& g) { return g.to(from); });
}

const Tensor& Tensor::fill_(double value) const {
  expect_writable(*this, "fill_");
  kernels::on(device()).elementwise.fill(*this, value);
  count_change(storage());
  return *this;
}

const Tensor& Tensor::zero_() const { return fill_(0); }

const Tensor& Tensor::copy_(const Tensor& source) const {
  expect_changeable(*this, source, "copy_");
  kernels::on(device()).elementwise.copy(source.device() == device() ? source : source.to(device()),
                                         *this);
  count_change(storage());
  return *this;
}

const Tensor& Tensor::add_(const Tensor& other, double scale) const {
  expect_changeable(*this, other, "add_");
  autograd::expect_same_device("add_", *this, other);
  if (!is_floating(dtype())) {
    autograd::expect_same_dtype_and_device("add_", *this, other);
    autograd::expect_number_fits("add_", *this, scale);
    return copy_(*this + other * scale);
  }
  autograd::expect_floating("add_", other);
  autograd::expect_computable("add_", *this);
  autograd::expect_computable("add_", other);
  kernels::on(device()).elementwise.axpy(scale, other, *this);
  count_change(storage());
  return *this;
}

const Tensor& Tensor::mul_(double factor) const {
  return change(*this, kernels::Binary::multiply, "mul_", factor);
}

const Tensor& Tensor::operator+=(const Tensor& other) const {
  return change(*this, kernels::Binary::add, "operator+=", other);
}
const Tensor& Tensor::operator-=(const Tensor& other) const {
  return change(*this, kernels::Binary::subtract, "operator-=", other);
}
const Tensor& Tensor::operator*=(const Tensor& other) const {
  return change(*this, kernels::Binary::multiply, "operator*=", other);
}
const Tensor& Tensor::operator/=(const Tensor& other) const {
  autograd::expect_floating("operator/=", *this);
  return change(*this, kernels::Binary::divide, "operator/=", other);
}
const Tensor& Tensor::operator+=(double number) const {
  return change(*this, kernels::Binary::add, "operator+=", number);
}
const Tensor& Tensor::operator-=(double number) const {
  return change(*this, kernels::Binary::subtract, "operator-=", number);
}
const Tensor& Tensor::operator/=(double number) const {
  autograd::expect_floating("operator/=", *this);
  return change(*this, kernels::Binary::divide, "operator/=", number);
}

}  // namespace tutti
