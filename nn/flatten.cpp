#include "flatten.h"

namespace tutti::nn {

Tensor Flatten::forward(const Tensor& input) {
  return input.flatten(options_.first, options_.last);
}

std::string Flatten::describe() const {
  return fmt::format("first={}, last={}", options_.first, options_.last);
}

}  // namespace tutti::nn
