// Flatten: joins dimensions into one; by default all but the batch.
#pragma once

#include "module.h"

namespace tutti::nn {

class Flatten : public Layer {
 public:
  struct Options {
    std::int64_t
        first = 1,
        last = -1;  ///< the dimensions joined, both included; negative ones count from the end
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
