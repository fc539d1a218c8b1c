// Number is the scalar of the reference: a number that knows its gradient and its rounding error.
// A plain loop over Numbers computes an operation, and the tape of what the loop did gives the
// gradients of its inputs. Nothing here uses the library under test.
#pragma once

#include <vector>

namespace tutti::test {

/// The type that references compute in. It has more digits than float64, so that results in float64
/// can be compared.
using Real = long double;

/// A value, with its place on the thread's tape and the size that its rounding errors have.
class Number {
 public:
  /// Makes a constant, which has no gradient.
  Number(Real value = 0);
  /// Makes an input of which gradients() returns the gradient.
  static Number variable(Real value);

  Real value() const { return value_; }
  /// The rounding error of a computation in a format of precision u is about u * magnitude(). It is
  /// at least |value()|, and larger after a cancellation.
  Real magnitude() const { return magnitude_; }
  /// The number of this value on the tape, from 0; -1 for a constant.
  int position() const { return position_; }

  /// The derivative of a function at one point. Its magnitude is like that of a Number.
  struct Slope {
    Real value, magnitude;
    explicit Slope(Real v) : Slope(v, v) {}
    Slope(Real v, Real m);
  };
  /// Returns a function of x with this value and slope.
  static Number of(const Number& x, Real value, Slope slope);
  /// Returns a function of two numbers.
  static Number of(const Number& x, Slope by_x, const Number& y, Slope by_y, Real value,
                   Real magnitude);

 private:
  Real value_, magnitude_;
  int position_ = -1;
};

Number operator-(const Number& x);
Number operator+(const Number& a, const Number& b);
Number operator-(const Number& a, const Number& b);
Number operator*(const Number& a, const Number& b);
Number operator/(const Number& a, const Number& b);
Number exp(const Number& x);
Number log(const Number& x);
Number sqrt(const Number& x);

/// Forgets all numbers. The numbers of one operation share a tape. `precision` is the rounding
/// error of the computation that the tape is compared with.
void clear_tape(Real precision);
/// Returns max(x, 0). The gradient passes where x is above 0, and where it is NaN.
Number relu(const Number& x);
/// Returns whether a relu() had an input so near 0 that rounding decides whether it passes.
bool is_tape_ambiguous();

/// The gradient of one number.
struct NumberGradient {
  Real value = 0, magnitude = 0;
  bool is_reached = false;  ///< whether an output depends on the number
};

/// Returns the gradient of sum(weights * outputs) by every number on the tape, at its position().
std::vector<NumberGradient> gradients(const std::vector<Number>& outputs,
                                      const std::vector<Real>& weights);

}  // namespace tutti::test
