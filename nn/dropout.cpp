#include "dropout.h"

#include "functional/dropout.h"

namespace tutti::nn {

Dropout::Dropout(const Options& options) : options_(options) {
  if (!(options.p >= 0 && options.p <= 1))
    fail<ValueError>("Dropout: expected p from 0 to 1, got {}", options.p);
}

Tensor Dropout::forward(const Tensor& input) { return dropout(input, options_.p, is_training()); }

std::string Dropout::describe() const { return fmt::format("p={}", options_.p); }

}  // namespace tutti::nn
