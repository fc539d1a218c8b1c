// Comparisons, which have no gradient.
#include "operation.h"

#include <tutti/autograd/functions.h>

namespace tutti::test {
namespace {

using Rule = bool (*)(Real, Real);

const Traits traits{.dtypes = {float32, float64, bfloat16, int64, uint8, boolean},
                    .is_differentiable = false};

Operation of_tensors(const std::string& name, Tensor (*call)(const Tensor&, const Tensor&),
                     Rule rule, const Traits& own = traits) {
  return {name + "(const Tensor&, const Tensor&)",
          [=](Draw& draw) {
            const Shape shape = draw.shape();
            return Trial{.inputs = {draw.tensor(shape, Values::steps),
                                    draw.tensor(draw.broadcastable(shape), Values::steps)},
                         .call = [=](const auto& in) { return call(in[0], in[1]); },
                         .reference =
                             [=](const Arrays& in) {
                               return zip(in[0], in[1], [=](const Number& a, const Number& b) {
                                 return Number(rule(a.value(), b.value()));
                               });
                             },
                         .dtype = boolean};
          },
          own};
}

Operation with_number(const std::string& name, Tensor (*call)(const Tensor&, double), Rule rule) {
  return {name + "(const Tensor&, double)",
          [=](Draw& draw) {
            const auto number = static_cast<double>(draw.pick(0, 1));
            return Trial{.inputs = {draw.tensor(draw.shape(), Values::steps)},
                         .call = [=](const auto& in) { return call(in[0], number); },
                         .reference =
                             [=](const Arrays& in) {
                               return map(in[0], [=](const Number& x) {
                                 return Number(rule(x.value(), number));
                               });
                             },
                         .options = std::to_string(number),
                         .dtype = boolean};
          },
          traits};
}

Operation inverted(const Traits& logic) {
  return {"operator~(const Tensor&)",
          [](Draw& draw) {
            return Trial{.inputs = {draw.tensor(draw.shape())},
                         .call = [](const auto& in) { return ~in[0]; },
                         .reference =
                             [](const Arrays& in) {
                               return map(in[0],
                                          [](const Number& x) { return Number(x.value() == 0); });
                             }};
          },
          logic};
}

}  // namespace

Family comparisons() {
  const Rule equal = [](Real a, Real b) { return a == b; },
             unequal = [](Real a, Real b) { return a != b; },
             less = [](Real a, Real b) { return a < b; },
             less_equal = [](Real a, Real b) { return a <= b; },
             greater = [](Real a, Real b) { return a > b; },
             greater_equal = [](Real a, Real b) { return a >= b; },
             both = [](Real a, Real b) { return a != 0 && b != 0; },
             either = [](Real a, Real b) { return a != 0 || b != 0; };
  const Traits logic{.dtypes = {boolean}, .is_differentiable = false};
  return {"comparisons",
          {of_tensors("eq", eq, equal), with_number("eq", eq, equal), of_tensors("ne", ne, unequal),
           with_number("ne", ne, unequal), of_tensors("lt", lt, less), with_number("lt", lt, less),
           of_tensors("le", le, less_equal), with_number("le", le, less_equal),
           of_tensors("gt", gt, greater), with_number("gt", gt, greater),
           of_tensors("ge", ge, greater_equal), with_number("ge", ge, greater_equal),
           of_tensors("operator&", operator&, both, logic),
           of_tensors("operator|", operator|, either, logic), inverted(logic)}};
}

}  // namespace tutti::test
