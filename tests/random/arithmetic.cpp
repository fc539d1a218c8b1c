// Arithmetic with broadcasting, powers, the choices between two tensors, and changes in place.
#include "operation.h"

#include <tutti/autograd/functions.h>

#include <cmath>

namespace tutti::test {
namespace {

using Pair = Number (*)(const Number&, const Number&);

Number plus(const Number& a, const Number& b) { return a + b; }
Number minus(const Number& a, const Number& b) { return a - b; }
Number times(const Number& a, const Number& b) { return a * b; }
Number quotient(const Number& a, const Number& b) { return a / b; }

// The gradient of the larger one passes to it, halved where both are equal. NaN comes from either
// and passes to both.
Number extremum(const Number& a, const Number& b, bool is_first) {
  const Real x = a.value(), y = b.value();
  const bool none = std::isnan(x) || std::isnan(y);
  const double by_a = none       ? 1
                      : x == y   ? 0.5
                      : is_first ? 1
                                 : 0,
               by_b = none       ? 1
                      : x == y   ? 0.5
                      : is_first ? 0
                                 : 1;
  return Number::of(a, Number::Slope(by_a), b, Number::Slope(by_b),
                    none       ? NAN
                    : is_first ? x
                               : y,
                    0);
}
Number larger(const Number& a, const Number& b) { return extremum(a, b, a.value() > b.value()); }
Number smaller(const Number& a, const Number& b) { return extremum(a, b, a.value() < b.value()); }

// A function of two tensors whose shapes broadcast.
Operation of_two(const std::string& name, Tensor (*call)(const Tensor&, const Tensor&),
                 Pair reference, Traits traits, Values values = Values::normal) {
  return {name + "(const Tensor&, const Tensor&)",
          [=](Draw& draw) {
            const Shape shape = draw.shape();
            // A size of 1 may stand for the 0 of an empty batch, in one of the tensors at most.
            const bool first = draw.chance(0.5);
            const Shape other = draw.broadcastable(shape);
            return Trial{
                .inputs = {draw.tensor(first ? shape : other, values),
                           draw.tensor(first ? other : shape, values)},
                .call = [=](const auto& in) { return call(in[0], in[1]); },
                .reference = [=](const Arrays& in) { return zip(in[0], in[1], reference); }};
          },
          traits};
}

// A function of a tensor and a number, which comes first if `reversed`.
template <class Call>
Operation with_number(const std::string& name, Call call, Pair reference, bool reversed,
                      Traits traits) {
  return {name + (reversed ? "(double, const Tensor&)" : "(const Tensor&, double)"),
          [=](Draw& draw) {
            const double number = draw.number();
            return Trial{.inputs = {draw.tensor(draw.shape())},
                         .call = [=](const auto& in) { return call(in[0], number); },
                         .reference =
                             [=](const Arrays& in) {
                               return map(in[0], [=](const Number& x) {
                                 return reversed ? reference(number, x) : reference(x, number);
                               });
                             },
                         .options = std::to_string(number)};
          },
          traits};
}

Number power(const Number& x, double exponent) {
  const Real value = std::pow(x.value(), Real(exponent)),
             slope = exponent == 0 ? 0 : exponent * std::pow(x.value(), Real(exponent - 1));
  return Number::of(x, value, {slope, std::abs(slope) * (1 + std::abs(exponent))});
}

Operation powers() {
  return {"pow(const Tensor&, double)",
          [](Draw& draw) {
            const bool is_whole = draw.chance(0.5);
            const double exponent = is_whole ? static_cast<double>(draw.pick(-3, 3))
                                             : draw.number();
            return Trial{
                .inputs = {draw.tensor(draw.shape(), is_whole ? Values::normal : Values::positive)},
                .call = [=](const auto& in) { return pow(in[0], exponent); },
                .reference =
                    [=](const Arrays& in) {
                      return map(in[0], [=](const Number& x) { return power(x, exponent); });
                    },
                .options = std::to_string(exponent)};
          },
          {.roundings = 0, .gradient_roundings = 4}};
}

Operation choice() {
  return {"where(const Tensor&, const Tensor&, const Tensor&)", [](Draw& draw) {
            const Shape shape = draw.shape();
            return Trial{.inputs = {draw.tensor(draw.broadcastable(shape), Values::normal, boolean),
                                    draw.tensor(shape), draw.tensor(draw.broadcastable(shape))},
                         .call = [](const auto& in) { return where(in[0], in[1], in[2]); },
                         .reference =
                             [](const Arrays& in) {
                               const Shape full = broadcast_shapes(
                                   in[0].shape, broadcast_shapes(in[1].shape, in[2].shape, ""), "");
                               const Array a = broadcast_to(in[1], full),
                                           b = broadcast_to(in[2], full);
                               Array result = broadcast_to(in[0], full);
                               for (std::size_t i = 0; i < result.values.size(); ++i)
                                 result.values[i] = result.values[i].value() != 0 ? a.values[i]
                                                                                  : b.values[i];
                               return result;
                             },
                         .dtype = draw.dtype()};
          }};
}

// A gradient flows between the bounds, and where the element is NaN.
Operation bounded() {
  return {"clamp(const Tensor&, std::optional<double>, std::optional<double>)",
          [](Draw& draw) {
            const auto bound = [&] { return 0.5 * static_cast<double>(2 * draw.pick(-1, 1)); };
            const std::int64_t which = draw.pick(0, 2);
            const auto low = which < 2 ? std::optional(bound()) : std::nullopt,
                       high = which > 0 ? std::optional(bound()) : std::nullopt;
            return Trial{.inputs = {draw.tensor(draw.shape(), Values::steps)},
                         .call = [=](const auto& in) { return clamp(in[0], low, high); },
                         .reference =
                             [=](const Arrays& in) {
                               return map(in[0], [=](const Number& x) {
                                 Real value = x.value();
                                 if (low && value < *low) value = *low;
                                 if (high && value > *high) value = *high;
                                 const bool is_outside = (low && x.value() <= *low) ||
                                                         (high && x.value() >= *high);
                                 return Number::of(x, value, Number::Slope(is_outside ? 0 : 1));
                               });
                             },
                         .options = fmt::format("{} to {}", low.value_or(NAN), high.value_or(NAN))};
          },
          {.dtypes = {float32, float64, bfloat16, int64}, .gradient_roundings = 0}};
}

Operation filled_where_masked() {
  return {"masked_fill(const Tensor&, const Tensor&, double)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            const double value = static_cast<double>(draw.pick(0, 3));
            const Tensor mask = draw.tensor(draw.broadcastable(shape), Values::normal, boolean);
            return Trial{.inputs = {draw.tensor(shape), mask},
                         .call = [=](const auto& in) { return masked_fill(in[0], in[1], value); },
                         .reference =
                             [=](const Arrays& in) {
                               return zip(in[0], in[1], [=](const Number& x, const Number& m) {
                                 return m.value() != 0 ? Number(value) : x;
                               });
                             },
                         .options = std::to_string(value)};
          },
          {.dtypes = {float32, float64, bfloat16, int64, uint8}, .gradient_roundings = 0}};
}

// A change of a tensor by a second one, in place. The first input is copied before.
Operation in_place(const std::string& name, const std::string& parameters, auto change,
                   auto reference, Traits traits) {
  return {"Tensor::" + name + "(" + parameters + ")",
          [=](Draw& draw) {
            const Shape shape = draw.shape();
            const double number = draw.number();
            // Memory that was expanded cannot be changed in place.
            const Tensor target = Draw({.dtype = draw.dtype()}).layout(draw.tensor(shape));
            return Trial{.inputs = {target, draw.tensor(draw.broadcastable(shape))},
                         .call =
                             [=](const auto& in) {
                               const Tensor changed = draw.layout(in[0].clone());
                               change(changed, in[1], number);
                               return changed;
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return zip(in[0], in[1], [=](const Number& x, const Number& y) {
                                 return reference(x, y, number);
                               });
                             },
                         .options = std::to_string(number)};
          },
          traits};
}

}  // namespace

Family arithmetic() {
  const Traits any{.dtypes = {float32, float64, bfloat16, int64, uint8}, .roundings = 0};
  const Traits floating{.gradient_roundings = 4};
  const Traits numbers{.gradient_roundings = 2};
  const Traits changing{.is_differentiable = false};
  return {
      "arithmetic",
      {
          {"operator-(const Tensor&)",
           [](Draw& draw) {
             return Trial{.inputs = {draw.tensor(draw.shape())},
                          .call = [](const auto& in) { return -in[0]; },
                          .reference =
                              [](const Arrays& in) {
                                return map(in[0], [](const Number& x) { return -x; });
                              }};
           }},
          of_two("operator+", tutti::operator+, plus, any),
          of_two("operator-", tutti::operator-, minus, {.gradient_roundings = 2}),
          of_two("operator*", tutti::operator*, times, {.gradient_roundings = 2}),
          of_two("operator/", tutti::operator/, quotient, floating),
          with_number("operator+", [](const Tensor& x, double n) { return x + n; }, plus, false,
                      {}),
          with_number("operator+", [](const Tensor& x, double n) { return n + x; }, plus, true, {}),
          with_number("operator-", [](const Tensor& x, double n) { return x - n; }, minus, false,
                      {}),
          with_number("operator-", [](const Tensor& x, double n) { return n - x; }, minus, true,
                      {}),
          with_number("operator*", [](const Tensor& x, double n) { return x * n; }, times, false,
                      {}),
          with_number("operator*", [](const Tensor& x, double n) { return n * x; }, times, true,
                      {}),
          with_number(
              "operator/", [](const Tensor& x, double n) { return x / n; }, quotient, false,
              numbers),
          with_number(
              "operator/", [](const Tensor& x, double n) { return n / x; }, quotient, true,
              floating),
          powers(),
          of_two("maximum", maximum, larger, any, Values::steps),
          of_two("minimum", minimum, smaller, any, Values::steps),
          choice(),
          bounded(),
          filled_where_masked(),
          in_place(
              "add_", "const Tensor&, double",
              [](const Tensor& x, const Tensor& y, double n) { x.add_(y, n); },
              [](const Number& x, const Number& y, double n) { return x + y * n; }, changing),
          in_place(
              "copy_", "const Tensor&",
              [](const Tensor& x, const Tensor& y, double) { x.copy_(y); },
              [](const Number&, const Number& y, double) { return y; }, changing),
          in_place(
              "mul_", "double", [](const Tensor& x, const Tensor&, double n) { x.mul_(n); },
              [](const Number& x, const Number&, double n) { return x * n; }, changing),
          in_place(
              "fill_", "double", [](const Tensor& x, const Tensor&, double n) { x.fill_(n); },
              [](const Number&, const Number&, double n) { return Number(n); }, changing),
          in_place(
              "zero_", "", [](const Tensor& x, const Tensor&, double) { x.zero_(); },
              [](const Number&, const Number&, double) { return Number(); }, changing),
      }};
}

}  // namespace tutti::test
