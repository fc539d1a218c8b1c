// Flatten: a layer that joins dimensions into one; by default all dimensions but the batch.
#pragma once

#include "module.h"

namespace tutti::nn {

/// A layer that joins the dimensions from `first` to `last` into one.
class Flatten : public Layer {
 public:
  struct Options {
    /// The first and the last of the joined dimensions. Negative numbers count from the end.
    std::int64_t first = 1, last = -1;
  };
  Flatten() : Flatten(Options{}) {}
  explicit Flatten(const Options& options) : options_(options) {}

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace tutti::nn
