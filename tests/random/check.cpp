#include "check.h"

#include <tutti/autograd/functions.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

namespace tutti::test {
namespace {

std::string repeat_command(const Operation& operation, std::uint64_t seed) {
  return fmt::format("TUTTI_RANDOM_CASE='{} {}' build/release/tests/random_tests", seed,
                     operation.name);
}

std::string describe(const Trial& trial) {
  std::string text;
  for (const Tensor& x : trial.inputs)
    text += x.defined() ? fmt::format("{} {} with strides {}; ", to_string(x.dtype()),
                                      to_string(x.shape()), to_string(x.strides()))
                        : "undefined; ";
  return text + trial.options;
}

// What the reference computed.
struct Expected {
  Shape shape;
  std::vector<double> values, magnitudes;
};

// The relative error of rounding to the dtype, and its largest and smallest numbers.
struct Format {
  double precision, largest, smallest;

  explicit Format(DType dtype)
      : precision(dtype == float64    ? 0x1p-53
                  : dtype == float32  ? 0x1p-24
                  : dtype == bfloat16 ? 0x1p-8
                                      : 0x1p-11),
        largest(dtype == float64    ? std::numeric_limits<double>::max()
                : dtype == float32  ? static_cast<double>(std::numeric_limits<float>::max())
                : dtype == bfloat16 ? 0x1.fep127
                                    : 65504),
        smallest(dtype == float64   ? 0x1p-1022
                 : dtype == float16 ? 0x1p-24
                                    : 0x1p-126) {}
};

// What a comparison allows for.
struct Tolerance {
  DType computed = float64;  // the dtype of the computation, float32 or float64
  double roundings = 0;      // of 16 bits, before the last one
  double growth = 1;         // Traits::error_growth
};

// Compares the elements of a tensor with the reference. The rounding errors of a computation in
// float32 or float64 may have 16 times the size of one rounding; a 16-bit result is computed in
// float32 and rounded once, after `roundings` others.
class Bounds {
 public:
  Bounds(DType dtype, const Tolerance& tolerance)
      : is_exact_(!is_floating(dtype)),
        format_(dtype),
        computed_(16 * tolerance.growth * Format(tolerance.computed).precision),
        last_(dtype == tolerance.computed ? 0 : 1.01 * format_.precision),
        before_(size_of(dtype) == 2 ? tolerance.roundings * format_.precision : 0) {}

  bool holds(double got, double expected, double magnitude) const {
    if (std::isnan(expected)) return std::isnan(got);
    if (got == expected) return true;
    if (is_exact_ || !std::isfinite(expected) || std::isnan(got)) return false;
    if (!std::isfinite(magnitude)) return true;  // an intermediate result was infinite
    if (std::isinf(got)) return std::abs(expected) > 0.99 * format_.largest;
    return std::abs(got - expected) <= allowed(expected, magnitude);
  }
  double allowed(double expected, double magnitude) const {
    return last_ * std::abs(expected) + (before_ + computed_) * magnitude +
           2 * format_.smallest * (1 + magnitude);
  }

 private:
  bool is_exact_;
  Format format_;
  double computed_, last_, before_;
};

// The indices of one dimension at which a NaN may stand.
struct MayBeNan {
  int dim = 0;
  std::set<std::size_t> indices = {};

  // Takes the indices at which an input has a NaN.
  static MayBeNan where(const std::vector<Tensor>& inputs, int dim);
  // Whether the i-th element of a tensor is at such an index; of a vector, the element itself. The
  // weight of a grouped convolution has the channels of one group only.
  bool has(std::size_t i, const Shape& shape) const {
    const auto count = static_cast<std::size_t>(shape.size() <= dim ? numel(shape) : shape[dim]);
    const std::size_t own = index_of(i, shape);
    return std::ranges::any_of(indices, [&](std::size_t index) { return index % count == own; });
  }

 private:
  std::size_t index_of(std::size_t i, const Shape& shape) const {
    if (shape.size() <= dim) return i;
    const auto inside = static_cast<std::size_t>(product(shape, dim + 1, shape.size()));
    return i / inside % static_cast<std::size_t>(shape[dim]);
  }
};

MayBeNan MayBeNan::where(const std::vector<Tensor>& inputs, int dim) {
  MayBeNan result{dim};
  for (const Tensor& x : inputs) {
    if (!x.defined() || x.rank() < 2 || !is_floating(x.dtype())) continue;
    const std::vector<double> values = to_vector(x);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::isnan(values[i])) result.indices.insert(result.index_of(i, x.shape()));
  }
  return result;
}

// Compares the elements. Those in `may_be_nan` may be NaN where the reference is not.
void compare(const std::string& what, const Tensor& got, const Expected& expected,
             const Tolerance& tolerance, const MayBeNan& may_be_nan = {}) {
  ASSERT_TRUE(got.defined()) << what << " is undefined";
  ASSERT_EQ(got.shape(), expected.shape) << what;
  const Bounds bounds(got.dtype(), tolerance);
  const std::vector<double> values = to_vector(got);
  int failures = 0;
  for (std::size_t i = 0; i < values.size() && failures < 3; ++i) {
    const double value = expected.values[i], magnitude = expected.magnitudes[i];
    if (bounds.holds(values[i], value, magnitude)) continue;
    if (std::isnan(values[i]) && may_be_nan.has(i, expected.shape)) continue;
    ++failures;
    ADD_FAILURE() << fmt::format("{} {} {}, element {}: got {}, expected {} +- {:.3g}", what,
                                 to_string(got.dtype()), to_string(got.shape()), i, values[i],
                                 value, bounds.allowed(value, magnitude));
  }
}

std::vector<char> bytes_of(const Tensor& x) {
  if (!x.defined()) return {};
  const auto* begin = static_cast<const char*>(x.storage()->data());
  return begin ? std::vector<char>(begin, begin + x.storage()->bytes()) : std::vector<char>();
}

// One trial.
class Comparison {
 public:
  Comparison(const Operation& operation, Trial trial, Path path)
      : operation_(operation), trial_(std::move(trial)), path_(path) {}

  // Returns the path along which gradients were compared, if any were.
  std::optional<Path> run();

 private:
  struct Leaf {
    std::size_t input;
    std::vector<Number> variables;
    double second = 0;  // the gradient along the second path
  };

  void choose_leaves();
  Array reference();
  Tensor second_path(const std::vector<Tensor>& used);
  void compare_gradients(const Array& expected, const std::vector<double>& weights,
                         const MayBeNan& may_be_nan);
  Tolerance tolerance(double roundings) const;
  bool is_leaf(std::size_t i) const {
    return std::ranges::any_of(leaves_, [i](const Leaf& leaf) { return leaf.input == i; });
  }

  const Operation& operation_;
  Trial trial_;
  Path path_;
  std::vector<Leaf> leaves_;
};

// Lets some of the floating inputs require a gradient, at least one of them.
void Comparison::choose_leaves() {
  if (!operation_.traits.is_differentiable) return;
  std::vector<std::size_t> floating;
  for (std::size_t i = 0; i < trial_.inputs.size(); ++i)
    if (i < trial_.differentiable_inputs && trial_.inputs[i].defined() &&
        is_floating(trial_.inputs[i].dtype()))
      floating.push_back(i);
  for (const std::size_t i : floating) {
    const bool is_last = i == floating.back() && leaves_.empty();
    const Tensor& x = trial_.inputs[i];
    if (!(x.requires_grad() || is_last || default_generator().below(5) > 0)) continue;
    x.requires_grad_();
    leaves_.push_back({i, {}, 0});
  }
}

// An operation computes in float32 if one of its inputs does.
Tolerance Comparison::tolerance(double roundings) const {
  DType computed = float64;
  for (const Tensor& x : trial_.inputs)
    if (x.defined() && is_floating(x.dtype()) && x.dtype() != float64) computed = float32;
  return {computed, roundings + trial_.more_roundings, operation_.traits.error_growth};
}

Array Comparison::reference() {
  const Tolerance rounded = tolerance(operation_.traits.roundings);
  clear_tape(rounded.roundings > 0 ? Format(bfloat16).precision
                                   : 16 * Format(rounded.computed).precision);
  Arrays arrays;
  for (std::size_t i = 0; i < trial_.inputs.size(); ++i) {
    const Tensor& x = trial_.inputs[i];
    arrays.emplace_back();
    if (!x.defined()) continue;
    arrays.back().shape = x.shape();
    for (const double value : to_vector(x))
      arrays.back().values.push_back(is_leaf(i) ? Number::variable(value) : Number(value));
  }
  for (Leaf& leaf : leaves_) leaf.variables = arrays[leaf.input].values;
  return trial_.reference(arrays);
}

// Returns the sum of some inputs with small factors, as float64 of shape ().
Tensor Comparison::second_path(const std::vector<Tensor>& used) {
  Tensor total = zeros({}, {.dtype = float64});
  for (Leaf& leaf : leaves_) {
    const double factor = 0.5 * static_cast<double>(1 + default_generator().below(3));
    leaf.second += factor;
    total = total + sum(used[leaf.input]).to(float64) * factor;
  }
  return total;
}

void Comparison::compare_gradients(const Array& expected, const std::vector<double>& weights,
                                   const MayBeNan& may_be_nan) {
  const std::vector<NumberGradient> all =
      gradients(expected.values, {weights.begin(), weights.end()});
  for (const Leaf& leaf : leaves_) {
    const Tensor& x = trial_.inputs[leaf.input];
    Expected gradient{x.shape(), {}, {}};
    for (const Number& variable : leaf.variables) {
      const NumberGradient& one = all[static_cast<std::size_t>(variable.position())];
      gradient.values.push_back(static_cast<double>(one.value) + leaf.second);
      gradient.magnitudes.push_back(static_cast<double>(one.magnitude) + std::abs(leaf.second));
    }
    const std::string what = fmt::format("gradient of input {}", leaf.input);
    compare(what, x.grad(), gradient,
            tolerance(operation_.traits.gradient_roundings + (leaf.second != 0 ? 2 : 0)),
            may_be_nan);
    if (!x.grad().defined()) continue;  // compare() has reported it
    EXPECT_EQ(x.grad().dtype(), x.dtype()) << what;
  }
}

std::optional<Path> Comparison::run() {
  std::vector<std::vector<char>> before;
  for (const Tensor& x : trial_.inputs) before.push_back(bytes_of(x));
  choose_leaves();
  // The CPU cannot add in float16.
  for (const Tensor& x : trial_.inputs)
    if ((x.defined() && x.dtype() == float16) || trial_.dtype == float16) path_ = Path::dense;

  std::vector<Tensor> used = trial_.inputs;
  const bool two_paths = path_ == Path::two_paths, is_first = default_generator().below(2) == 0;
  if (two_paths)
    for (const Leaf& leaf : leaves_)
      if (default_generator().below(2) == 0) used[leaf.input] = used[leaf.input].clone();
  Tensor beside;  // recorded before or after the operation, so visited after or before it
  if (two_paths && is_first) beside = second_path(used);
  const Tensor y = trial_.call(used);
  if (two_paths && !is_first) beside = second_path(used);

  const Array expected = reference();
  Expected result{expected.shape, {}, {}};
  for (const Number& number : expected.values) {
    result.values.push_back(static_cast<double>(number.value()));
    result.magnitudes.push_back(static_cast<double>(number.magnitude()));
  }
  const NanSpread spread = operation_.traits.nan_spread;
  compare("result", y, result, tolerance(operation_.traits.roundings),
          spread == NanSpread::samples ? MayBeNan::where({trial_.inputs.front()}, 0) : MayBeNan());
  EXPECT_EQ(y.dtype(), trial_.dtype.value_or(trial_.inputs.front().dtype()));

  // Rounding may decide whether a ReLU passes a gradient.
  const bool has_gradient = !leaves_.empty() && !is_tape_ambiguous();
  if (has_gradient) {
    std::vector<double> weights(result.values.size(), 1.5);
    if (path_ == Path::dense) {
      const Tensor g = Draw({.dtype = y.dtype()}).tensor(y.shape());
      weights = to_vector(g);
      y.backward(g);
    } else {
      const Tensor total = sum(y).to(float64) * 1.5;
      (two_paths ? total + beside : total).backward();
    }
    compare_gradients(expected, weights,
                      spread == NanSpread::none ? MayBeNan() : MayBeNan::where(trial_.inputs, 1));
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(bytes_of(trial_.inputs[i]) == before[i]) << "input " << i << " was changed";
  return has_gradient ? std::optional(path_) : std::nullopt;
}

}  // namespace

SeedChoice::SeedChoice(std::uint64_t seed) {
  manual_seed(seed);
  path = static_cast<Path>(default_generator().below(path_count));
  empty_batch = default_generator().below(64) == 0;
}

std::optional<Path> check(const Operation& operation, std::uint64_t seed) {
  const SeedChoice choice(seed);
  Generator& generator = default_generator();
  const Traits& traits = operation.traits;
  const auto kind =
      static_cast<std::size_t>(generator.below(static_cast<std::int64_t>(traits.dtypes.size())));
  const Draw draw(
      {.dtype = traits.dtypes[kind],
       .empty_batch = choice.empty_batch,
       .nan = traits.takes_nonfinite && generator.below(6) == 0,
       .infinite = traits.takes_nonfinite && traits.takes_infinite && generator.below(6) == 0});
  std::string text = operation.name + "\n  repeat with: " + repeat_command(operation, seed);
  try {
    Draw drawn = draw;
    Trial trial = operation.draw(drawn);
    text += "\n  inputs: " + describe(trial);
    SCOPED_TRACE(text);
    if (choice.empty_batch && !traits.takes_empty_batch) {
      EXPECT_THROW(trial.call(trial.inputs), ShapeError);
      return std::nullopt;
    }
    return Comparison(operation, std::move(trial), choice.path).run();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n" << text;
    return std::nullopt;
  }
}

}  // namespace tutti::test
