#include "linear.h"

#include "init.h"

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
    : options_(checked(options)),
      weight(add_parameter("weight", empty({options.out, options.in}))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor Linear::forward(const Tensor& input) {
  return linear(input, weight, bias, options_.activation);
}

std::string Linear::describe() const {
  return fmt::format("{}, {}{}{}", options_.in, options_.out, options_.bias ? "" : ", bias=false",
                     options_.activation == Activation::relu ? ", activation=relu" : "");
}

}  // namespace tutti::nn
