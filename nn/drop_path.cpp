#include "drop_path.h"

#include "functional/dropout.h"

namespace tutti::nn {

DropPath::DropPath(const Options& options) : options_(options) {
  if (!(options.p >= 0 && options.p <= 1))
    fail<ValueError>("DropPath: expected p from 0 to 1, got {}", options.p);
}

Tensor DropPath::forward(const Tensor& input) {
  return drop_path(input, options_.p, is_training());
}

std::string DropPath::describe() const { return fmt::format("p={}", options_.p); }

}  // namespace tutti::nn
