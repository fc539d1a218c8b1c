// Reductions and softmax.
#include "../kernels/kernels.h"
#include "functions.h"
#include "operation.h"
#include "record.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace tutti {
namespace {

using autograd::record;
using autograd::Saved;
using kernels::Reduction;

Dims all_dims(const Tensor& x) {
  Dims dims = Dims::filled(x.rank(), 0);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

// The shape of a reduction in both forms: with size 1 in the reduced dimensions, and without them.
struct ReducedShape {
  Shape kept, dropped;
  std::array<bool, Dims::max_rank> reduced{};
  std::int64_t count = 1;  // the number of elements that are reduced to one

  ReducedShape(const char* op, const Shape& shape, const Dims& dims) : kept(shape) {
    for (const std::int64_t dim : dims) {
      const int d = normalize_dim(dim, std::max(shape.size(), 1), op);
      if (reduced[static_cast<std::size_t>(d)])
        fail<ShapeError>("{}: dimension {} occurs twice in {}", op, d, to_string(dims));
      reduced[static_cast<std::size_t>(d)] = true;
      if (shape.empty()) continue;
      count *= shape[d];
      kept[d] = 1;
    }
    for (int d = 0; d < shape.size(); ++d)
      if (!reduced[static_cast<std::size_t>(d)]) dropped.push_back(shape[d]);
  }

  // Returns a result in either form as a view of `shape`, that of the input: each element of the
  // view is the one to which the element of the input was reduced.
  Tensor expand(const Tensor& result, const Shape& shape) const {
    Strides strides = Dims::filled(shape.size(), 0);
    const bool keeps = result.rank() == shape.size();
    for (int d = 0, next = 0; d < shape.size(); ++d)
      if (!reduced[static_cast<std::size_t>(d)]) strides[d] = result.strides()[keeps ? d : next++];
    return result.alias(shape, strides, result.offset());
  }
};

Tensor with_shape(const Tensor& dense, const Shape& shape) {
  return dense.alias(shape, dense_strides(shape), 0);
}

Tensor compute(Reduction op, const char* name, const Tensor& x, const ReducedShape& to,
               bool keepdim, DType dtype) {
  autograd::expect_computable(name, x);
  const Tensor out = empty(to.kept, {dtype, x.device()});
  kernels::on(x.device()).reduce.reduce(op, x, out);
  return keepdim ? out : with_shape(out, to.dropped);
}

Tensor extremum(Reduction op, const char* name, const Tensor& x, const Dims& dims, bool keepdim) {
  const ReducedShape to(name, x.shape(), dims);
  if (to.count == 0)
    fail<ShapeError>("{}: expected at least one element in dimensions {} of shape {}", name,
                     to_string(dims), to_string(x.shape()));
  const Tensor y = compute(op, name, x, to, keepdim, x.dtype());
  return record(name, y, {x},
                [dims, kept = to.kept, in = Saved(x), out = Saved(y)](const Tensor& g) {
                  // NaN is not equal to itself. There are no other NaN than those in a result.
                  const Tensor is_equal = eq(in, with_shape(out, kept)).to(g.dtype()),
                               is_nan = ne(in, in.get()).to(g.dtype()), chosen = is_equal + is_nan;
                  return chosen * (g.reshape(kept) / sum(chosen, dims, true));
                });
}

// The variance of a tensor that is not 16-bit: its sum of squares around the mean over `divisor`.
struct Variance {
  Dims dims;
  Shape kept;
  double divisor;

  Tensor centred(const Tensor& x) const { return x - mean(x, dims, true); }
  Tensor value(const Tensor& x, bool keepdim) const {
    return sum(square(centred(x)), dims, keepdim) / divisor;
  }
  // Returns the gradient of x from that of the variance.
  Tensor gradient(const Tensor& g, const Tensor& x) const {
    return centred(x) * (g * (2 / divisor)).reshape(kept);
  }
};

// Returns the variance, or its square root.
Tensor spread(const char* op, const Tensor& given, const Dims& dims, const VarianceOptions& options,
              bool is_root) {
  autograd::expect_floating(op, given);
  const ReducedShape to(op, given.shape(), dims);
  const double divisor = static_cast<double>(to.count) - static_cast<double>(options.correction);
  const Variance variance{dims, to.kept, std::max(0.0, divisor)};
  const Tensor x = given.to(accumulate_dtype(given.dtype()));
  Tensor y = variance.value(x.detach(), options.keepdim);
  if (!is_root)
    return record(op, y, {x},
                  [variance, in = Saved(x)](const Tensor& g) { return variance.gradient(g, in); })
        .to(given.dtype());
  y = sqrt(y);
  return record(op, y, {x},
                [variance, in = Saved(x), out = Saved(y)](const Tensor& g) {
                  // The slope of the root is infinite at 0; the subgradient there is 0.
                  return variance.gradient(masked_fill(g * 0.5 / out.get(), eq(out, 0), 0), in);
                })
      .to(given.dtype());
}

Tensor softmax_along(const Tensor& x, std::int64_t dim, bool log, const char* name) {
  autograd::expect_trainable(name, x);
  if (x.rank() == 0) return softmax_along(x.reshape({1}), dim, log, name).reshape({});
  const int d = normalize_dim(dim, x.rank(), name);
  const Tensor y = empty_like(x);
  kernels::on(x.device()).softmax.forward(x, d, log, y);
  return record(name, y, {x}, [d, log, saved = Saved(y)](const Tensor& g) {
    const Tensor out = empty_like(saved.get());
    kernels::on(g.device()).softmax.backward(g, saved, d, log, out);
    return out;
  });
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  const ReducedShape to("sum", x.shape(), dims);
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : int64;
  return record("sum", compute(Reduction::sum, "sum", x, to, keepdim, dtype), {x},
                [to, shape = x.shape()](const Tensor& g) { return to.expand(g, shape); });
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  autograd::expect_floating("mean", x);
  const ReducedShape to("mean", x.shape(), dims);
  const auto count = static_cast<double>(to.count);
  // The sum of a 16-bit tensor may exceed the range of its dtype when the mean does not.
  const Tensor y = compute(Reduction::sum, "mean", x, to, keepdim, accumulate_dtype(x.dtype())) /
                   count;
  return record("mean", y.to(x.dtype()), {x}, [count, to, shape = x.shape()](const Tensor& g) {
    return to.expand(g / count, shape);
  });
}

Tensor var(const Tensor& x, const Dims& dims, const VarianceOptions& options) {
  return spread("var", x, dims, options, false);
}

Tensor std(const Tensor& x, const Dims& dims, const VarianceOptions& options) {
  return spread("std", x, dims, options, true);
}

Tensor max(const Tensor& x, const Dims& dims, bool keepdim) {
  return extremum(Reduction::max, "max", x, dims, keepdim);
}

Tensor min(const Tensor& x, const Dims& dims, bool keepdim) {
  return extremum(Reduction::min, "min", x, dims, keepdim);
}

Tensor sum(const Tensor& x) { return sum(x, all_dims(x)); }
Tensor mean(const Tensor& x) { return mean(x, all_dims(x)); }
Tensor var(const Tensor& x) { return var(x, all_dims(x)); }
Tensor std(const Tensor& x) { return std(x, all_dims(x)); }
Tensor max(const Tensor& x) { return max(x, all_dims(x)); }
Tensor min(const Tensor& x) { return min(x, all_dims(x)); }

Tensor any(const Tensor& x) { return any(x, all_dims(x)); }
Tensor all(const Tensor& x) { return all(x, all_dims(x)); }
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return gt(sum(ne(x, 0), dims, keepdim), 0);
}
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return eq(sum(eq(x, 0), dims, keepdim), 0);
}

Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim) {
  if (x.rank() == 0) return argmax(x.detach().reshape({1}), dim);
  const int d = normalize_dim(dim, x.rank(), "argmax");
  const ReducedShape to("argmax", x.shape(), {d});
  if (to.count == 0)
    fail<ShapeError>("argmax: expected at least one element in dimension {} of shape {}", dim,
                     to_string(x.shape()));
  autograd::expect_computable("argmax", x);
  const Tensor out = empty(to.kept, {int64, x.device()});
  kernels::on(x.device()).reduce.topk(x, d, out);
  return keepdim ? out : with_shape(out, to.dropped);
}

Tensor argmax(const Tensor& x) { return argmax(x.detach().reshape({-1}), 0); }

Tensor softmax(const Tensor& x, std::int64_t dim) {
  return softmax_along(x, dim, false, "softmax");
}
Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  return softmax_along(x, dim, true, "log_softmax");
}

}  // namespace tutti
