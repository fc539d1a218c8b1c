// The operations of elementwise kernels and of reductions, and their formulas, written once for the
// CPU and for CUDA kernels. A new elementwise operation is an enumerator and its line in
// `evaluate`; both devices then have it. This file has no loops and no dtypes: the kernels of each
// device read and write the tensors.
//
// The template argument Math supplies exp, tanh and the like, which each processor computes in its
// own way: cpu::Math (cpu/vector_math.h) or cuda::Math (cuda/element.h).
#pragma once

#include "../core/host_device.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

namespace tutti::kernels {

/// The operations on one floating number. `count` is the number of operations.
enum class Unary {
  negate,
  absolute,
  exp,
  log,
  sqrt,
  rsqrt,
  square,
  sine,
  cosine,
  tanh,
  sigmoid,
  relu,  // NaN stays NaN
  sign,  // NaN stays NaN
  floor,
  ceil,
  round,     // half to even
  softplus,  // log(1 + exp(x))
  count
};

/// The operations on two numbers. `count` is the number of operations.
enum class Binary {
  add,
  subtract,
  multiply,
  divide,
  power,
  maximum,  // NaN if either is NaN
  minimum,
  equal,  // comparisons give a bool
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  leaky_relu,  // of (x, slope): x above 0, else slope x
  // Gradients of activations: g is the incoming gradient, y the activation's output.
  relu_grad,     // of (g, y); NaN in y passes g
  sigmoid_grad,  // of (g, y)
  tanh_grad,     // of (g, y)
  count
};

/// Returns log(1 + x) to full precision: the rounding error of 1 + x cancels in the quotient
/// (Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991,
/// theorem 4).
template <class Math, class T>
TUTTI_HOST_DEVICE inline T log1p(T x) {
  const T y = T(1) + x;
  return y == T(1) ? x : Math::log(y) * (x / (y - T(1)));
}

template <Unary op, class Math, class T>
TUTTI_HOST_DEVICE inline T evaluate(T x) {
  if constexpr (op == Unary::negate) return -x;
  else if constexpr (op == Unary::absolute) return Math::abs(x);
  else if constexpr (op == Unary::exp) return Math::exp(x);
  else if constexpr (op == Unary::log) return Math::log(x);
  else if constexpr (op == Unary::sqrt) return Math::sqrt(x);
  else if constexpr (op == Unary::rsqrt) return T(1) / Math::sqrt(x);
  else if constexpr (op == Unary::square) return x * x;
  else if constexpr (op == Unary::sine) return Math::sin(x);
  else if constexpr (op == Unary::cosine) return Math::cos(x);
  else if constexpr (op == Unary::tanh) return Math::tanh(x);
  else if constexpr (op == Unary::sigmoid) return T(1) / (T(1) + Math::exp(-x));
  else if constexpr (op == Unary::relu) return x > T(0) || x != x ? x : T(0);
  else if constexpr (op == Unary::sign) return x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(x * T(0)));
  else if constexpr (op == Unary::floor) return Math::floor(x);
  else if constexpr (op == Unary::ceil) return Math::ceil(x);
  else if constexpr (op == Unary::round) return Math::rint(x);
  else if constexpr (op == Unary::softplus) {
    const T tail = log1p<Math>(Math::exp(x > T(0) ? -x : x));
    return x > T(0) ? x + tail : tail;
  } else static_assert(op == Unary::count, "evaluate() lacks this operation");
}

/// The operations that only floating numbers have.
template <Binary op, class Math, class T>
TUTTI_HOST_DEVICE inline T evaluate_floating(T a, T b) {
  const T g = a, y = b;
  if constexpr (op == Binary::divide) return a / b;
  else if constexpr (op == Binary::power) return Math::pow(a, b);
  else if constexpr (op == Binary::leaky_relu) return a > T(0) ? a : a * b;
  else if constexpr (op == Binary::relu_grad) return y <= T(0) ? T(0) : g;
  else if constexpr (op == Binary::sigmoid_grad) return g * y * (T(1) - y);
  else if constexpr (op == Binary::tanh_grad) return g * (T(1) - y * y);
  else static_assert(op == Binary::count, "evaluate() lacks this operation");
}

/// Returns a T, a bool for comparisons, and nothing (void) where integers lack the operation.
template <Binary op, class Math, class T>
TUTTI_HOST_DEVICE inline auto evaluate(T a, T b) {
  if constexpr (op == Binary::add) return a + b;
  else if constexpr (op == Binary::subtract) return a - b;
  else if constexpr (op == Binary::multiply) return a * b;
  else if constexpr (op == Binary::maximum) return a > b || a != a ? a : b;
  else if constexpr (op == Binary::minimum) return a < b || a != a ? a : b;
  else if constexpr (op == Binary::equal) return a == b;
  else if constexpr (op == Binary::not_equal) return a != b;
  else if constexpr (op == Binary::less) return a < b;
  else if constexpr (op == Binary::less_equal) return a <= b;
  else if constexpr (op == Binary::greater) return a > b;
  else if constexpr (op == Binary::greater_equal) return a >= b;
  else if constexpr (std::is_floating_point_v<T>) return evaluate_floating<op, Math>(a, b);
}

/// The type that `evaluate` returns for a binary operation.
template <Binary op, class Math, class T>
using ResultOf = decltype(evaluate<op, Math>(T{}, T{}));

namespace detail {

template <class Operation>
using AllOperations = std::make_index_sequence<static_cast<std::size_t>(Operation::count)>;

template <class Operation, std::size_t... i, class Body>
TUTTI_HOST_DEVICE inline void with_operation(Operation op, std::index_sequence<i...>,
                                             const Body& body) {
  (void)((op == static_cast<Operation>(i) &&
          (body.template operator()<static_cast<Operation>(i)>(), true)) ||
         ...);
}

template <std::size_t... i>
constexpr bool is_defined_for_integers(Binary op, std::index_sequence<i...>) {
  return ((op == static_cast<Binary>(i) &&
           !std::is_void_v<ResultOf<static_cast<Binary>(i), void, std::int64_t>>) ||
          ...);
}

}  // namespace detail

/// Calls body.operator()<op>(), with the operation as a template argument.
template <class Operation, class Body>
TUTTI_HOST_DEVICE inline void with_operation(Operation op, const Body& body) {
  detail::with_operation(op, detail::AllOperations<Operation>{}, body);
}

/// Returns whether the operation is defined for integers, too.
constexpr bool is_defined_for_integers(Binary op) {
  return detail::is_defined_for_integers(op, detail::AllOperations<Binary>{});
}

// ---- Reductions: how two values are combined.

enum class Reduction { sum, max, min };

template <class T>
TUTTI_HOST_DEVICE inline bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return x != x;
  else return false;
}

/// Returns whether a is larger than b, where NaN is larger than every number. topk and max
/// pooling keep the first value that no other value exceeds.
template <class T>
TUTTI_HOST_DEVICE inline bool is_larger(T a, T b) {
  return !(a <= b || is_nan(b));
}

/// Combines two values. The maximum and the minimum are NaN if either value is.
template <class T>
TUTTI_HOST_DEVICE inline T combine(Reduction op, T a, T b) {
  if (op == Reduction::sum) return a + b;
  return (op == Reduction::max ? b > a : b < a) || is_nan(b) ? b : a;
}

/// Returns the neutral element: combining it with a value does not change that value.
template <class T>
constexpr T identity_of(Reduction op) {
  using Limits = std::numeric_limits<T>;
  if (op == Reduction::sum) return T(0);
  if constexpr (Limits::has_infinity)
    return op == Reduction::max ? -Limits::infinity() : Limits::infinity();
  else return op == Reduction::max ? Limits::lowest() : Limits::max();
}

}  // namespace tutti::kernels
