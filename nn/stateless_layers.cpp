// The layers that have neither parameters nor buffers: activations, Dropout, DropPath, Flatten
// and Upsample. They check their options; autograd/ and nn/functional compute.
#include "activation.h"
#include "drop_path.h"
#include "dropout.h"
#include "flatten.h"
#include "functional/activation.h"
#include "functional/dropout.h"
#include "upsample.h"

#include <fmt/ranges.h>

#include <cmath>

namespace tutti::nn {

LeakyReLU::LeakyReLU(const Options& options) : options_(options) {
  if (!std::isfinite(options.slope))
    fail<ValueError>("LeakyReLU: expected a finite slope, got {}", options.slope);
}
Tensor LeakyReLU::forward(const Tensor& input) { return leaky_relu(input, options_.slope); }
std::string LeakyReLU::describe() const { return fmt::format("slope={}", options_.slope); }

Dropout::Dropout(const Options& options) : options_(options) {
  expect_probability("Dropout", options.p);
}

Tensor Dropout::forward(const Tensor& input) { return dropout(input, options_.p, is_training()); }

std::string Dropout::describe() const { return fmt::format("p={}", options_.p); }

DropPath::DropPath(const Options& options) : options_(options) {
  expect_probability("DropPath", options.p);
}

Tensor DropPath::forward(const Tensor& input) {
  return drop_path(input, options_.p, is_training());
}

std::string DropPath::describe() const { return fmt::format("p={}", options_.p); }

Tensor Flatten::forward(const Tensor& input) {
  return input.flatten(options_.first, options_.last);
}

std::string Flatten::describe() const {
  return fmt::format("first={}, last={}", options_.first, options_.last);
}

std::string Upsample::describe() const {
  const std::string target =
      options_.size.empty()
          ? fmt::format("scale_factor={}", fmt::join(options_.scale_factor, " x "))
          : "size=" + tutti::to_string(options_.size);
  return fmt::format("{}, {}{}", target, nn::to_string(options_.mode),
                     options_.align_corners ? ", align_corners=true" : "");
}

}  // namespace tutti::nn
