#include "number.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tutti::test {
namespace {

// How one number was computed: from up to two others, with the derivatives by them.
struct Entry {
  std::array<int, 2> inputs;
  std::array<Number::Slope, 2> slopes;
};
thread_local std::vector<Entry> tape;
thread_local Real precision = 0;
thread_local bool is_ambiguous = false;

}  // namespace

Number::Slope::Slope(Real v, Real m) : value(v), magnitude(std::max(std::abs(v), m)) {}

Number::Number(Real value) : value_(value), magnitude_(std::abs(value)) {}

Number Number::variable(Real value) {
  Number x(value);
  x.position_ = static_cast<int>(tape.size());
  tape.push_back({{-1, -1}, {Slope(0), Slope(0)}});
  return x;
}

Number Number::of(const Number& x, Real value, Slope slope) {
  return of(x, slope, Number(), Slope(0), value, std::abs(value) + slope.magnitude * x.magnitude());
}

Number Number::of(const Number& x, Slope by_x, const Number& y, Slope by_y, Real value,
                  Real magnitude) {
  Number result(value);
  result.magnitude_ = std::max(std::abs(value), magnitude);
  if (x.position_ < 0 && y.position_ < 0) return result;
  result.position_ = static_cast<int>(tape.size());
  tape.push_back({{x.position_, y.position_}, {by_x, by_y}});
  return result;
}

Number operator-(const Number& x) {
  return Number::of(x, Number::Slope(-1), Number(), Number::Slope(0), -x.value(), x.magnitude());
}

Number operator+(const Number& a, const Number& b) {
  return Number::of(a, Number::Slope(1), b, Number::Slope(1), a.value() + b.value(),
                    a.magnitude() + b.magnitude());
}

Number operator-(const Number& a, const Number& b) {
  return Number::of(a, Number::Slope(1), b, Number::Slope(-1), a.value() - b.value(),
                    a.magnitude() + b.magnitude());
}

Number operator*(const Number& a, const Number& b) {
  return Number::of(a, {b.value(), b.magnitude()}, b, {a.value(), a.magnitude()},
                    a.value() * b.value(),
                    a.magnitude() * std::abs(b.value()) + std::abs(a.value()) * b.magnitude());
}

Number operator/(const Number& a, const Number& b) {
  const Real quotient = a.value() / b.value(), size = std::abs(b.value()),
             b_error = b.magnitude() / size,
             magnitude = a.magnitude() / size + std::abs(quotient) * b_error;
  return Number::of(a, {1 / b.value(), b_error / size}, b,
                    {-quotient / b.value(), (magnitude + std::abs(quotient) * b_error) / size},
                    quotient, magnitude);
}

Number exp(const Number& x) {
  const Real value = std::exp(x.value());
  return Number::of(x, value, {value, value * (1 + x.magnitude())});
}

Number log(const Number& x) {
  const Real slope = 1 / x.value();
  return Number::of(x, std::log(x.value()), {slope, slope * slope * x.magnitude()});
}

Number sqrt(const Number& x) {
  const Real value = std::sqrt(x.value()), slope = 0.5 / value;
  return Number::of(x, value, {slope, slope * x.magnitude() / x.value()});
}

void clear_tape(Real given) {
  tape.clear();
  precision = given;
  is_ambiguous = false;
}

Number relu(const Number& x) {
  const Real size = std::abs(x.value());
  // A number that was not computed has no rounding error.
  const bool is_near = x.magnitude() > size && size <= 2 * precision * x.magnitude();
  if (is_near) is_ambiguous = true;
  if (!(x.value() <= 0)) return x;
  // Near 0 the computed number may be above it.
  return Number::of(x, Number::Slope(0), Number(), Number::Slope(0), 0,
                    is_near ? x.magnitude() : 0);
}

bool is_tape_ambiguous() { return is_ambiguous; }

std::vector<NumberGradient> gradients(const std::vector<Number>& outputs,
                                      const std::vector<Real>& weights) {
  std::vector<NumberGradient> result(tape.size());
  const auto add = [&](int position, Real value, Real magnitude) {
    if (position < 0) return;
    NumberGradient& gradient = result[static_cast<std::size_t>(position)];
    gradient.value += value;
    gradient.magnitude += magnitude;
    gradient.is_reached = true;
  };
  for (std::size_t i = 0; i < outputs.size(); ++i)
    add(outputs[i].position(), weights[i], std::abs(weights[i]));
  for (std::size_t i = tape.size(); i-- > 0;) {
    const NumberGradient gradient = result[i];
    if (!gradient.is_reached) continue;
    for (std::size_t k = 0; k < 2; ++k)
      add(tape[i].inputs[k], gradient.value * tape[i].slopes[k].value,
          gradient.magnitude * tape[i].slopes[k].magnitude);
  }
  return result;
}

}  // namespace tutti::test
