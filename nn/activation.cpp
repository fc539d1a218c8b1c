#include "activation.h"

#include "functional/activation.h"

#include <cmath>

namespace tutti::nn {

Tensor ReLU::forward(const Tensor& input) { return relu(input); }
Tensor GELU::forward(const Tensor& input) { return gelu(input); }
Tensor Sigmoid::forward(const Tensor& input) { return sigmoid(input); }
Tensor Tanh::forward(const Tensor& input) { return tanh(input); }

Tensor SiLU::forward(const Tensor& input) { return silu(input); }
Tensor Hardswish::forward(const Tensor& input) { return hardswish(input); }

LeakyReLU::LeakyReLU(const Options& options) : options_(options) {
  if (!std::isfinite(options.slope))
    fail<ValueError>("LeakyReLU: expected a finite slope, got {}", options.slope);
}
Tensor LeakyReLU::forward(const Tensor& input) { return leaky_relu(input, options_.slope); }
std::string LeakyReLU::describe() const { return fmt::format("slope={}", options_.slope); }

}  // namespace tutti::nn
