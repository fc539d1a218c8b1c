// The layers whose forward is one call of a function: Linear, and those without
// parameters, which are activations, Dropout, Flatten and Upsample. They check their
// options; autograd/ and nn/functional compute.
#include "activation.h"
#include "dropout.h"
#include "flatten.h"
#include "functional/dropout.h"
#include "init.h"
#include "linear.h"
#include "upsample.h"

#include <fmt/ranges.h>

#include <cmath>

namespace tutti::nn {
namespace {

const Linear::Options& checked(const Linear::Options& o) {
  if (o.in <= 0 || o.out <= 0)
    fail<ValueError>("Linear: expected the options in and out to be positive, got {} and {}", o.in,
                     o.out);
  return o;
}

}  // namespace

Linear::Linear(const Options& options)
    : LayerWith(checked(options)),
      weight(add_parameter("weight", empty({options.out, options.in}))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor Linear::forward(const Tensor& input) { return linear(input, weight, bias); }

std::string Linear::describe() const {
  return fmt::format("{}, {}{}", options_.in, options_.out, options_.bias ? "" : ", bias=false");
}

LeakyReLU::LeakyReLU(const Options& options) : LayerWith(options) {
  if (!std::isfinite(options.slope))
    fail<ValueError>("LeakyReLU: expected a finite slope, got {}", options.slope);
}
Tensor LeakyReLU::forward(const Tensor& input) { return leaky_relu(input, options_.slope); }
std::string LeakyReLU::describe() const { return fmt::format("slope={}", options_.slope); }

Dropout::Dropout(const Options& options) : LayerWith(options) {
  expect_probability("Dropout", options.p);
}

Tensor Dropout::forward(const Tensor& input) { return dropout(input, options_.p, is_training()); }

std::string Dropout::describe() const { return fmt::format("p={}", options_.p); }

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
