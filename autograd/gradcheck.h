// gradcheck: compares the gradient that an operation reports with central differences, in float64.
#pragma once

#include "../core/random.h"
#include "../core/tensor.h"

#include <functional>
#include <string>
#include <vector>

namespace tutti::autograd {

struct GradcheckOptions {
  double step = 1e-6;       ///< of the central difference, times max(1, |x|)
  double tolerance = 1e-6;  ///< on |numeric - reported|, relative to the root mean square of the
                            ///< gradient (at least 1)
  std::uint64_t seed = 0;   ///< of the random direction that weighs the outputs
};

struct GradcheckResult {
  double worst = 0;  ///< the largest relative error found
  std::string
      message;  ///< empty where the check passed; else which input, which element, both numbers
  explicit operator bool() const { return message.empty(); }
};

/// Runs `function` on leaves with the values and layouts of `inputs`, projects its output onto a
/// random tensor, and compares d(projection)/d(input) element by element with (f(x + h) - f(x - h))
/// / 2h. Inputs of an integer dtype are passed through. `function` must be deterministic and smooth
/// near the inputs. Also reports (as a failed check) a function that writes to its inputs, and a
/// gradient that changes when the forward is repeated. DTypeError for floating inputs that are not
/// float64: differences in float32 say nothing. Several outputs: return them joined, or check each.
///
///   EXPECT_TRUE(gradcheck([](const auto& in) { return in[0] * in[1]; }, {a, b}));
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace tutti::autograd
