// Reductions along dimensions, argmax, and softmax.
#include "operation.h"
#include "reference.h"

#include <tutti/autograd/functions.h>

#include <cmath>

namespace tutti::test {
namespace {

using Numbers = std::vector<Number>;

Number mean_of(const Numbers& numbers) {
  return sum_of(numbers) / static_cast<double>(numbers.size());
}

// The sum of squares around the mean, divided by the count less the correction.
Number variance_of(const Numbers& numbers, std::int64_t correction) {
  const Number mean = mean_of(numbers);
  Number total;
  for (const Number& number : numbers) total = total + (number - mean) * (number - mean);
  const auto count = static_cast<std::int64_t>(numbers.size());
  return total / static_cast<Real>(std::max<std::int64_t>(0, count - correction));
}
// The subgradient of the root at 0 is 0.
Number deviation_of(const Numbers& numbers, std::int64_t correction) {
  const Number variance = variance_of(numbers, correction);
  return variance.value() == 0 ? Number(0) : sqrt(variance);
}

// The largest or smallest number. Equal ones share the gradient; NaN comes from any NaN, and then
// those that are NaN share it.
Number extremum_of(const Numbers& numbers, bool is_max) {
  Real best = numbers.front().value();
  for (const Number& number : numbers) {
    const Real x = number.value();
    if (std::isnan(x) || (is_max ? x > best : x < best)) best = std::isnan(best) ? best : x;
  }
  Numbers chosen;
  for (const Number& number : numbers)
    if (number.value() == best || std::isnan(number.value())) chosen.push_back(number);
  Number result(best);
  for (const Number& number : chosen) {
    const Number::Slope share(1 / static_cast<Real>(chosen.size()));
    result = Number::of(result, Number::Slope(1), number, share, best, 0);
  }
  return result;
}

Number max_of(const Numbers& numbers) { return extremum_of(numbers, true); }
Number min_of(const Numbers& numbers) { return extremum_of(numbers, false); }

Number any_of(const Numbers& numbers) {
  return Number(std::ranges::any_of(numbers, [](const Number& x) { return x.value() != 0; }));
}
Number all_of(const Numbers& numbers) {
  return Number(std::ranges::all_of(numbers, [](const Number& x) { return x.value() != 0; }));
}

Number argmax_of(const Numbers& numbers) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const Real x = numbers[i].value(), y = numbers[best].value();
    if (x > y || (std::isnan(x) && !std::isnan(y))) best = i;
  }
  return static_cast<double>(best);
}

// The dtype in which the sum of a dtype is returned.
DType sum_dtype(DType dtype) { return dtype == uint8 || dtype == boolean ? int64 : dtype; }

struct Reduced {
  Tensor (*all)(const Tensor&);
  Tensor (*some)(const Tensor&, const Dims&, bool);
  Number (*reference)(const Numbers&);
  bool needs_elements = false;
  std::optional<DType> result = {};

  DType result_of(DType dtype) const {
    return result.value_or(needs_elements ? dtype : sum_dtype(dtype));
  }
};

// The reduction of all dimensions and that of some.
std::vector<Operation> reduction(const std::string& name, const Reduced& r, Traits traits) {
  const auto shape_for = [r](Draw& draw) {
    Shape shape = draw.shape();
    for (int d = 0; r.needs_elements && d < shape.size(); ++d)
      if (shape[d] == 0 && !(draw.empty_batch() && d == 0)) shape[d] = 3;
    return shape;
  };
  const Operation some{
      name + "(const Tensor&, const Dims&, bool)",
      [=](Draw& draw) {
        const Shape shape = shape_for(draw);
        Dims dims = draw.dims(shape.size());
        // An extremum needs elements in the dimensions that it reduces.
        if (r.needs_elements && draw.empty_batch()) {
          Dims kept;
          for (const std::int64_t d : dims)
            if (d != 0 && d != -shape.size()) kept.push_back(d);
          dims = kept;
        }
        const bool keepdim = draw.chance(0.5);
        return Trial{
            .inputs = {draw.tensor(shape, Values::steps)},
            .call = [=](const auto& in) { return r.some(in[0], dims, keepdim); },
            .reference =
                [=](const Arrays& in) { return reduce(in[0], dims, keepdim, r.reference); },
            .options = "dims " + to_string(dims) + (keepdim ? " kept" : ""),
            .dtype = r.result_of(draw.dtype())};
      },
      traits};
  Traits all_traits = traits;
  all_traits.takes_empty_batch = !r.needs_elements;
  const Operation all{name + "(const Tensor&)",
                      [=](Draw& draw) {
                        return Trial{.inputs = {draw.tensor(shape_for(draw))},
                                     .call = [=](const auto& in) { return r.all(in[0]); },
                                     .reference =
                                         [=](const Arrays& in) {
                                           return reduce(in[0], all_dims(in[0].rank()), false,
                                                         r.reference);
                                         },
                                     .dtype = r.result_of(draw.dtype())};
                      },
                      all_traits};
  return {all, some};
}

// Returns a shape and one of its dimensions that has elements. A tensor without dimensions counts
// as one of one dimension.
std::pair<Shape, std::int64_t> shape_and_dim(Draw& draw) {
  Shape shape = draw.shape(draw.empty_batch() ? 2 : 0);
  if (shape.empty()) return {shape, -draw.pick(0, 1)};
  const int first = draw.empty_batch() ? 1 : 0;
  const auto d = static_cast<int>(draw.pick(first, shape.size() - 1));
  shape[d] = std::max<std::int64_t>(1, shape[d]);
  return {shape, draw.chance(0.3) ? d - shape.size() : d};
}

Operation largest_index() {
  return {"argmax(const Tensor&, std::int64_t, bool)",
          [](Draw& draw) {
            const auto [shape, dim] = shape_and_dim(draw);
            const bool keepdim = draw.chance(0.5);
            return Trial{.inputs = {draw.tensor(shape, Values::steps)},
                         .call = [=, d = dim](const auto& in) { return argmax(in[0], d, keepdim); },
                         .reference =
                             [=, d = dim](const Arrays& in) {
                               return reduce(in[0], in[0].rank() > 0 ? Dims{d} : Dims(), keepdim,
                                             argmax_of);
                             },
                         .options = "dim " + std::to_string(dim),
                         .dtype = int64};
          },
          {.dtypes = {float32, float64, bfloat16, int64}, .is_differentiable = false}};
}

Operation largest_index_of_all() {
  return {"argmax(const Tensor&)",
          [](Draw& draw) {
            Shape shape = draw.shape();
            for (int d = draw.empty_batch() ? 1 : 0; d < shape.size(); ++d)
              shape[d] = std::max<std::int64_t>(1, shape[d]);
            return Trial{.inputs = {draw.tensor(shape, Values::steps)},
                         .call = [](const auto& in) { return argmax(in[0]); },
                         .reference =
                             [](const Arrays& in) {
                               return reduce(in[0], all_dims(in[0].rank()), false, argmax_of);
                             },
                         .dtype = int64};
          },
          {.dtypes = {float32, float64, bfloat16, int64},
           .is_differentiable = false,
           .takes_empty_batch = false}};
}

// Returns different elements, with a NaN in some trials: rounding decides the deviation of many
// equal ones, and its gradient.
Tensor spread_input(Draw& draw, const Shape& shape) {
  const Tensor x = draw.layout(randn(shape).to(draw.dtype()));
  return draw.chance(0.1) ? draw.layout(where(gt(rand(shape), 0.9), full({}, NAN, {x.dtype()}), x))
                          : x;
}

// The variance or deviation of some dimensions, and of all.
std::vector<Operation> spread(const std::string& name, Tensor (*all)(const Tensor&),
                              Tensor (*some)(const Tensor&, const Dims&, const VarianceOptions&),
                              Number (*reference)(const Numbers&, std::int64_t)) {
  const Traits traits{.gradient_roundings = 2, .takes_infinite = false};
  const Operation of_some{
      name + "(const Tensor&, const Dims&, const VarianceOptions&)",
      [=](Draw& draw) {
        const Shape shape = draw.shape();
        const Dims dims = draw.dims(shape.size());
        const VarianceOptions options{.correction = draw.pick(0, 1), .keepdim = draw.chance(0.5)};
        return Trial{
            .inputs = {spread_input(draw, shape)},
            .call = [=](const auto& in) { return some(in[0], dims, options); },
            .reference =
                [=](const Arrays& in) {
                  return reduce(in[0], dims, options.keepdim, [=](const Numbers& numbers) {
                    return reference(numbers, options.correction);
                  });
                },
            .options = fmt::format("dims {} correction {}", to_string(dims), options.correction)};
      },
      traits};
  const Operation of_all{name + "(const Tensor&)",
                         [=](Draw& draw) {
                           return Trial{.inputs = {spread_input(draw, draw.shape())},
                                        .call = [=](const auto& in) { return all(in[0]); },
                                        .reference =
                                            [=](const Arrays& in) {
                                              return reduce(in[0], all_dims(in[0].rank()), false,
                                                            [=](const Numbers& numbers) {
                                                              return reference(numbers, 1);
                                                            });
                                            }};
                         },
                         traits};
  return {of_all, of_some};
}

Operation softmax_along(const std::string& name, Tensor (*call)(const Tensor&, std::int64_t),
                        bool log) {
  return {name + "(const Tensor&, std::int64_t)",
          [=](Draw& draw) {
            const auto [shape, dim] = shape_and_dim(draw);
            return Trial{
                .inputs = {draw.tensor(shape)},
                .call = [=, d = dim](const auto& in) { return call(in[0], d); },
                .reference =
                    [=, d = dim](const Arrays& in) { return reference::softmax(in[0], d, log); },
                .options = "dim " + std::to_string(dim)};
          },
          {.gradient_roundings = 3}};
}

}  // namespace

Family reductions() {
  Family family{"reductions", {}};
  const auto add = [&](const std::vector<Operation>& operations) {
    family.operations.insert(family.operations.end(), operations.begin(), operations.end());
  };
  add(reduction("sum", {sum, sum, sum_of},
                {.dtypes = {float32, float64, bfloat16, int64, uint8, boolean}}));
  add(reduction("mean", {mean, mean, mean_of}, {.gradient_roundings = 2}));
  const Traits ordered{.dtypes = {float32, float64, bfloat16, int64, uint8, boolean},
                       .gradient_roundings = 3};
  add(reduction("max", {max, max, max_of, true}, ordered));
  add(reduction("min", {min, min, min_of, true}, ordered));
  Traits logic = ordered;
  logic.is_differentiable = false;
  add(reduction("any", {any, any, any_of, false, boolean}, logic));
  add(reduction("all", {tutti::all, tutti::all, all_of, false, boolean}, logic));
  add(spread("var", var, var, variance_of));
  add(spread("std", tutti::std, tutti::std, deviation_of));
  add({largest_index(), largest_index_of_all(), softmax_along("softmax", softmax, false),
       softmax_along("log_softmax", log_softmax, true)});
  return family;
}

}  // namespace tutti::test
