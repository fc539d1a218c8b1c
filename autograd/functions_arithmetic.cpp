// Arithmetic with broadcasting, maximum, minimum, where, and comparisons.
#include "../kernels/kernels.h"
#include "functions.h"
#include "operation.h"
#include "record.h"

#include <algorithm>
#include <optional>

namespace tutti {
namespace {

using autograd::needs_grad;
using autograd::record;
using autograd::Saved;
using autograd::sum_to;
using kernels::Binary;

Tensor compute(Binary op, const char* name, const Tensor& a, const Tensor& b,
               std::optional<DType> result = {}) {
  autograd::expect_same_dtype_and_device(name, a, b);
  autograd::expect_computable(name, a);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name);
  const Tensor out = autograd::empty_result(shape, {a, b}, result.value_or(a.dtype()));
  kernels::on(a.device()).elementwise.binary(op, a, b, out);
  return out;
}

Tensor compute(Binary op, const char* name, const Tensor& a, double b, bool reversed = false,
               std::optional<DType> result = {}) {
  autograd::expect_number_fits(name, a, b);
  autograd::expect_computable(name, a);
  const Tensor out = empty_like(a, result.value_or(a.dtype()));
  kernels::on(a.device()).elementwise.binary_scalar(op, a, b, reversed, out);
  return out;
}

Tensor compare(Binary op, const char* name, const Tensor& a, const Tensor& b) {
  return compute(op, name, a, b, boolean);
}
Tensor compare(Binary op, const char* name, const Tensor& a, double b) {
  const autograd::DTypeRange range(is_floating(a.dtype()) ? a.dtype() : int64);
  const bool is_above = b > range.most, is_below = b < range.least;
  if (!is_above && !is_below) return compute(op, name, a, b, false, boolean);
  // All integers are on one side of the number.
  const bool is_true = op == Binary::not_equal ||
                       op == (is_above ? Binary::less : Binary::greater) ||
                       op == (is_above ? Binary::less_equal : Binary::greater_equal);
  return empty_like(a, boolean).fill_(is_true);
}

const Tensor& expect_bool(const char* op, const Tensor& x) {
  if (x.dtype() == boolean) return x;
  fail<DTypeError>("{}: expected a tensor of dtype bool, got {}; compare it, as in ne(x, 0)", op,
                   to_string(x.dtype()));
}

Tensor negate(const Tensor& x) {
  if (!is_floating(x.dtype())) return compute(Binary::subtract, "negate", x, 0, true);
  autograd::expect_computable("negate", x);
  const Tensor out = empty_like(x);
  kernels::on(x.device()).elementwise.unary(kernels::Unary::negate, x, out);
  return out;
}

// Saves `x` only if a gradient needs it.
Saved saved_if(bool needed, const Tensor& x) { return needed ? Saved(x) : Saved(); }

// Returns the maximum or minimum. `loses` is the comparison of an operand with the other one that
// is true where the operand is not the result. NaN loses to nothing: where an operand is NaN, both
// get the whole gradient, as in PyTorch.
Tensor extremum(Binary op, Binary loses, const char* name, const Tensor& a, const Tensor& b) {
  const Tensor out = compute(op, name, a, b);
  return record(
      name, out, {a, b},
      [=, x = Saved(a), y = Saved(b), need_a = needs_grad(a),
       need_b = needs_grad(b)](const Tensor& g) {
        const Tensor shared = where(eq(x, y), g * 0.5, g),
                     none = zeros({}, {g.dtype(), g.device()});
        const auto gradient = [&](const Tensor& own, const Tensor& other) {
          return sum_to(where(compare(loses, name, own, other), none, shared), own.shape());
        };
        return std::vector{need_a ? gradient(x, y) : Tensor(), need_b ? gradient(y, x) : Tensor()};
      });
}

}  // namespace

Tensor operator+(const Tensor& a, const Tensor& b) {
  return record(
      "add", compute(Binary::add, "add", a, b), {a, b},
      [p = a.shape(), q = b.shape(), need_a = needs_grad(a),
       need_b = needs_grad(b)](const Tensor& g) {
        return std::vector{need_a ? sum_to(g, p) : Tensor(), need_b ? sum_to(g, q) : Tensor()};
      });
}

Tensor operator-(const Tensor& a, const Tensor& b) {
  return record("subtract", compute(Binary::subtract, "subtract", a, b), {a, b},
                [p = a.shape(), q = b.shape(), need_a = needs_grad(a),
                 need_b = needs_grad(b)](const Tensor& g) {
                  return std::vector{need_a ? sum_to(g, p) : Tensor(),
                                     need_b ? negate(sum_to(g, q)) : Tensor()};
                });
}

Tensor operator*(const Tensor& a, const Tensor& b) {
  const bool need_a = needs_grad(a), need_b = needs_grad(b);
  return record("multiply", compute(Binary::multiply, "multiply", a, b), {a, b},
                [x = saved_if(need_b, a), y = saved_if(need_a, b), p = a.shape(), q = b.shape(),
                 need_a, need_b](const Tensor& g) {
                  return std::vector{need_a ? sum_to(g * y, p) : Tensor(),
                                     need_b ? sum_to(g * x, q) : Tensor()};
                });
}

Tensor operator/(const Tensor& a, const Tensor& b) {
  autograd::expect_floating("divide", a);
  const bool need_a = needs_grad(a), need_b = needs_grad(b);
  return record(
      "divide", compute(Binary::divide, "divide", a, b), {a, b},
      [x = saved_if(need_b, a), y = Saved(b), p = a.shape(), need_a, need_b](const Tensor& g) {
        const Tensor scaled = g / y;
        return std::vector{need_a ? sum_to(scaled, p) : Tensor(),
                           need_b ? sum_to(negate(scaled * x / y), y.get().shape()) : Tensor()};
      });
}

Tensor operator+(const Tensor& a, double b) {
  return record("add", compute(Binary::add, "add", a, b), {a}, [](const Tensor& g) { return g; });
}

Tensor operator-(const Tensor& a, double b) {
  return record("subtract", compute(Binary::subtract, "subtract", a, b), {a},
                [](const Tensor& g) { return g; });
}

Tensor operator-(double a, const Tensor& b) {
  return record("subtract", compute(Binary::subtract, "subtract", b, a, true), {b},
                [](const Tensor& g) { return negate(g); });
}

Tensor operator*(const Tensor& a, double b) {
  return record("multiply", compute(Binary::multiply, "multiply", a, b), {a},
                [b](const Tensor& g) { return g * b; });
}

Tensor operator/(const Tensor& a, double b) {
  autograd::expect_floating("divide", a);
  return record("divide", compute(Binary::divide, "divide", a, b), {a},
                [b](const Tensor& g) { return g / b; });
}

Tensor operator/(double a, const Tensor& b) {
  autograd::expect_floating("divide", b);
  return record("divide", compute(Binary::divide, "divide", b, a, true), {b},
                [a, y = Saved(b)](const Tensor& g) { return g * (-a) / y / y; });
}

Tensor operator+(double a, const Tensor& b) { return b + a; }
Tensor operator*(double a, const Tensor& b) { return b * a; }
Tensor operator-(const Tensor& x) {
  return record("negate", negate(x), {x}, [](const Tensor& g) { return negate(g); });
}

Tensor pow(const Tensor& x, double exponent) {
  autograd::expect_floating("pow", x);
  return record("pow", compute(Binary::power, "pow", x, exponent), {x},
                [exponent, saved = Saved(x)](const Tensor& g) {
                  // The gradient of x^0 is 0 everywhere, also where x^-1 is infinite.
                  return exponent == 0 ? zeros_like(saved)
                                       : g * (pow(saved, exponent - 1) * exponent);
                });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum(Binary::maximum, Binary::less, "maximum", a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum(Binary::minimum, Binary::greater, "minimum", a, b);
}

Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max) {
  if (!min && !max) fail<ValueError>("clamp: expected a smallest or a largest value, got neither");
  // A bound that all numbers of the dtype keep has no effect, and each of the others is an element.
  const autograd::DTypeRange range(x.dtype());
  if (min) min = std::max(*min, range.least);
  if (max) max = std::min(*max, range.most);
  for (const std::optional<double> bound : {min, max})
    if (bound) autograd::expect_element_fits("clamp", x, *bound);
  Tensor y = x.detach();
  if (min) y = compute(Binary::maximum, "clamp", y, *min);
  if (max) y = compute(Binary::minimum, "clamp", y, *max);
  return record("clamp", y, {x}, [=, saved = Saved(x)](const Tensor& g) {
    const Tensor none = zeros({}, {g.dtype(), g.device()});
    Tensor gradient = g;
    if (min) gradient = where(le(saved, *min), none, gradient);
    if (max) gradient = where(ge(saved, *max), none, gradient);
    return gradient;
  });
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  expect_bool("where", condition);
  autograd::expect_same_dtype_and_device("where", a, b);
  if (condition.device() != a.device())
    fail<DeviceError>(
        "where: the condition is on {}, the tensors are on {}; move one with .to(device)",
        to_string(condition.device()), to_string(a.device()));
  const Shape shape =
      broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
  const Tensor out = autograd::empty_result(shape, {a, b, condition}, a.dtype());
  kernels::on(a.device()).elementwise.where(condition, a, b, out);
  return record("where", out, {a, b},
                [c = Saved(condition), p = a.shape(), q = b.shape(), need_a = needs_grad(a),
                 need_b = needs_grad(b)](const Tensor& g) {
                  const Tensor none = zeros({}, {g.dtype(), g.device()});
                  return std::vector{need_a ? sum_to(where(c, g, none), p) : Tensor(),
                                     need_b ? sum_to(where(c, none, g), q) : Tensor()};
                });
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  expect_bool("masked_fill", mask);
  autograd::expect_same_device("masked_fill", x, mask);
  autograd::expect_element_fits("masked_fill", x, value);
  return where(mask, full({}, value, {x.dtype(), x.device()}), x);
}

Tensor operator&(const Tensor& a, const Tensor& b) {
  return compute(Binary::minimum, "operator&", expect_bool("operator&", a), b);
}
Tensor operator|(const Tensor& a, const Tensor& b) {
  return compute(Binary::maximum, "operator|", expect_bool("operator|", a), b);
}
Tensor operator~(const Tensor& x) { return eq(expect_bool("operator~", x), 0); }

Tensor eq(const Tensor& a, const Tensor& b) { return compare(Binary::equal, "eq", a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare(Binary::not_equal, "ne", a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare(Binary::less, "lt", a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare(Binary::less_equal, "le", a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare(Binary::greater, "gt", a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare(Binary::greater_equal, "ge", a, b); }
Tensor eq(const Tensor& a, double b) { return compare(Binary::equal, "eq", a, b); }
Tensor ne(const Tensor& a, double b) { return compare(Binary::not_equal, "ne", a, b); }
Tensor lt(const Tensor& a, double b) { return compare(Binary::less, "lt", a, b); }
Tensor le(const Tensor& a, double b) { return compare(Binary::less_equal, "le", a, b); }
Tensor gt(const Tensor& a, double b) { return compare(Binary::greater, "gt", a, b); }
Tensor ge(const Tensor& a, double b) { return compare(Binary::greater_equal, "ge", a, b); }

}  // namespace tutti
