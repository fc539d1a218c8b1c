#include "indexing.h"

#include "../core/create.h"
#include "../kernels/kernels.h"
#include "functions.h"
#include "operation.h"
#include "record.h"

#include <algorithm>
#include <array>

namespace tutti {
namespace {

using autograd::record;
using autograd::Saved;

void check_index(const char* op, const Tensor& x, const Tensor& index) {
  if (index.dtype() != int64)
    fail<DTypeError>("{}: expected int64 indices, got {}; convert with .to(int64)", op,
                     to_string(index.dtype()));
  autograd::expect_same_device(op, x, index);
}

// Throws a ShapeError unless there is an element for every index.
void check_gather(const Tensor& x, int dim, const Tensor& index) {
  bool fits = index.rank() == x.rank();
  for (int d = 0; fits && d < x.rank(); ++d) fits = d == dim || index.shape()[d] <= x.shape()[d];
  if (!fits)
    fail<ShapeError>(
        "gather: expected indices of rank {} that are not larger than {} outside of dimension {}, "
        "got shape {}",
        x.rank(), to_string(x.shape()), dim, to_string(index.shape()));
  if (x.shape()[dim] == 0 && index.numel() > 0)
    fail<ShapeError>("gather: dimension {} of shape {} has no elements to index", dim,
                     to_string(x.shape()));
}

// Returns the elements of a detached `x` that `index` names, in the memory format of `x`.
Tensor gathered(const char* op, const Tensor& x, int dim, const Tensor& index) {
  const Tensor out = empty(index.shape(), {x.dtype(), x.device()}, x.memory_format());
  kernels::on(x.device()).indexing.gather(op, x, dim, index, out);
  return out;
}

// The same as a differentiable function.
Tensor taken(const char* op, const Tensor& x, int dim, const Tensor& index) {
  return record(op, gathered(op, x.detach(), dim, index), {x},
                [op, dim, i = Saved(index), shape = x.shape()](const Tensor& g) {
                  // Each sum has at most as many terms as there are indices along the dimension;
                  // more than a few are added in float64.
                  const DType wide = g.size(dim) > 256 ? float64 : accumulate_dtype(g.dtype());
                  const Tensor sums = zeros(shape, {wide, g.device()});
                  kernels::on(g.device()).indexing.scatter_add(op, g, dim, i, sums);
                  return sums.to(g.dtype());
                });
}

// Returns the vector `index` in the form in which gather() takes whole slices of `x` along `dim`.
Tensor for_slices(const Tensor& x, int dim, const Tensor& index) {
  Shape shape = x.shape(), along = Dims::filled(x.rank(), 1);
  shape[dim] = along[dim] = index.numel();
  if (x.shape()[dim] == 0 && numel(shape) > 0)
    fail<ShapeError>("index_select: dimension {} of shape {} has no elements to index", dim,
                     to_string(x.shape()));
  return index.reshape(along).expand(shape);
}

Tensor flipped(const Tensor& x, const Dims& dims) {
  Tensor y = x;
  for (const std::int64_t d : dims) {
    const std::int64_t size = x.shape()[static_cast<int>(d)];
    const Tensor reversed = static_cast<double>(size - 1) - arange(size, {int64, x.device()});
    y = gathered("flip", y, static_cast<int>(d), for_slices(y, static_cast<int>(d), reversed));
  }
  return dims.empty() ? x.clone() : y;
}

// Padding holds how many elements pad() adds, or cuts off, on both sides of each dimension.
struct Padding {
  Dims before, after;
  Shape from, to;

  Padding(const Tensor& x, const Dims& given)
      : before(Dims::filled(x.rank(), 0)), after(before), from(x.shape()), to(from) {
    if (given.size() % 2 != 0 || given.size() > 2 * x.rank())
      fail<ShapeError>(
          "pad: expected two numbers for each padded dimension of shape {}, from the last "
          "dimension "
          "on, got {}",
          to_string(from), to_string(given));
    for (int i = 0; i < given.size() / 2; ++i) {
      const int d = x.rank() - 1 - i;
      before[d] = given[2 * i];
      after[d] = given[2 * i + 1];
      std::int64_t size = 0;
      if (__builtin_add_overflow(from[d], before[d], &size) || size < 0 ||
          __builtin_add_overflow(size, after[d], &size) || size < 0)
        fail<ShapeError>("pad: cannot add {} and {} elements to dimension {} of shape {}",
                         before[d], after[d], d, to_string(from));
      to[d] = size;
    }
  }

  // Returns the elements of the input, or of its gradient, that are not cut off.
  Tensor kept(Tensor input) const {
    for (int d = 0; d < from.size(); ++d)
      input = input.slice(d, above_0(-before[d]), above_0(from[d] - above_0(-after[d])));
    return input;
  }
  // Returns their places in the output, or in its gradient.
  Tensor inside(Tensor output) const {
    for (int d = 0; d < to.size(); ++d)
      output = output.slice(d, above_0(before[d]), above_0(to[d] - above_0(after[d])));
    return output;
  }

 private:
  static std::int64_t above_0(std::int64_t n) { return std::max<std::int64_t>(0, n); }
};

}  // namespace

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  check_index("gather", x, index);
  if (x.rank() == 0 && index.rank() == 0)
    return gather(x.reshape({1}), dim, index.reshape({1})).reshape({});
  const int d = normalize_dim(dim, x.rank(), "gather");
  check_gather(x, d, index);
  return taken("gather", x, d, index);
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  check_index("index_select", x, index);
  if (index.rank() != 1)
    fail<ShapeError>("index_select: expected a vector of indices, got shape {}",
                     to_string(index.shape()));
  if (x.rank() == 0 && index.numel() == 1)
    return index_select(x.reshape({1}), dim, index).reshape({});
  const int d = normalize_dim(dim, x.rank(), "index_select");
  return taken("index_select", x, d, for_slices(x, d, index));
}

std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim) {
  if (x.rank() == 0) {
    const auto [values, indices] = topk(x.reshape({1}), k, dim);
    return k == 1 ? std::pair(values.reshape({}), indices.reshape({})) : std::pair(values, indices);
  }
  const int d = normalize_dim(dim, x.rank(), "topk");
  if (k < 0 || k > x.shape()[d])
    fail<ValueError>(
        "topk: expected a k from 0 to {}, the size of dimension {} of shape {}, got {}",
        x.shape()[d], d, to_string(x.shape()), k);
  Shape shape = x.shape();
  shape[d] = k;
  const Tensor indices = empty(shape, {int64, x.device()});
  autograd::expect_computable("topk", x);
  kernels::on(x.device()).reduce.topk(x, d, indices);
  return {gather(x, d, indices), indices};
}

std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim, bool descending) {
  const int d = normalize_dim(dim, std::max(x.rank(), 1), "sort");
  const std::int64_t size = x.rank() == 0 ? 1 : x.shape()[d];
  if (descending) return topk(x, size, d);
  // Reversed twice, so that equal elements keep their order.
  const auto [values, indices] = topk(flip(x, {d}), size, d);
  return {flip(values, {d}), static_cast<double>(size - 1) - flip(indices, {d})};
}

Tensor one_hot(const Tensor& index, std::int64_t classes) {
  check_index("one_hot", index, index);
  if (classes < 1) fail<ValueError>("one_hot: expected at least one class, got {}", classes);
  if (index.device().is_cpu() && index.numel() > 0) {
    const auto smallest = min(index).item<std::int64_t>(),
               largest = max(index).item<std::int64_t>();
    if (smallest < 0 || largest >= classes)
      fail<ValueError>("one_hot: expected indices from 0 to {}, got {}", classes - 1,
                       smallest < 0 ? smallest : largest);
  }
  return eq(index.unsqueeze(-1), arange(classes, {int64, index.device()})).to(int64);
}

Tensor flip(const Tensor& x, const Dims& dims) {
  if (x.rank() == 0) return flip(x.reshape({1}), dims).reshape({});
  Dims reversed;
  std::array<bool, Dims::max_rank> seen{};
  for (const std::int64_t dim : dims) {
    const int d = normalize_dim(dim, x.rank(), "flip");
    bool& is_seen = seen[static_cast<std::size_t>(d)];
    if (is_seen) fail<ShapeError>("flip: dimension {} occurs twice in {}", d, to_string(dims));
    is_seen = true;
    reversed.push_back(d);
  }
  return record("flip", flipped(x.detach(), reversed), {x},
                [reversed](const Tensor& g) { return flipped(g, reversed); });
}

Tensor pad(const Tensor& x, const Dims& given, double value) {
  autograd::expect_element_fits("pad", x, value);
  const Padding padding(x, given);
  const Tensor out = empty(padding.to, {x.dtype(), x.device()}, x.memory_format()).fill_(value);
  padding.inside(out).copy_(padding.kept(x.detach()));
  return record("pad", out, {x}, [padding](const Tensor& g) {
    const Tensor gradient = zeros(padding.from, {g.dtype(), g.device()});
    padding.kept(gradient).copy_(padding.inside(g));
    return gradient;
  });
}

}  // namespace tutti
