// gradcheck compares the gradient that an operation reports with central differences, in float64.
#pragma once

#include "../core/random.h"
#include "../core/tensor.h"

#include <functional>
#include <string>
#include <vector>

namespace tutti::autograd {

/// The step and the tolerance of gradcheck().
struct GradcheckOptions {
  /// The step of the central difference, before it is multiplied by max(1, |x|).
  double step = 1e-6;
  /// The bound on |numeric - reported|, relative to the root mean square of the gradient or to 1 if
  /// that is larger.
  double tolerance = 1e-6;
  /// The seed of the random weights of the outputs.
  std::uint64_t seed = 0;
};

/// The result of gradcheck(). It converts to true if the check passed.
struct GradcheckResult {
  double worst = 0;  ///< the largest relative error found
  /// Empty if the check passed; else it names the input, the element and both numbers.
  std::string message;
  explicit operator bool() const { return message.empty(); }
};

/// Runs `function` on leaves with the values and layouts of `inputs`, sums its output with random
/// weights, and compares d(sum)/d(input), element by element, with (f(x + h) - f(x - h)) / 2h.
/// Inputs of an integer dtype are passed through. `function` must be deterministic and smooth near
/// the inputs; if it has several outputs, let it return them joined.
///
/// The check also fails for a function that writes to its inputs, and for a gradient that changes
/// when the forward is repeated. Throws a DTypeError for floating inputs that are not float64,
/// since differences in float32 are too coarse.
///
///   EXPECT_TRUE(gradcheck([](const auto& in) { return in[0] * in[1]; }, {a, b}));
[[nodiscard]] GradcheckResult gradcheck(
    const std::function<Tensor(const std::vector<Tensor>&)>& function,
    const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace tutti::autograd
