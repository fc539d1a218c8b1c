// Linear: y = x W^T + b, with an activation if asked for.
#pragma once

#include "functional/linear.h"
#include "module.h"

namespace tutti::nn {

class Linear : public Layer {
 public:
  struct Options {
    std::int64_t in = 0;  ///< features
    std::int64_t out = 0;
    bool bias = true;
    Activation activation = Activation::none;  ///< as a layer of its own would do it, see linear()
  };
  /// Weight and bias start as U(-1/sqrt(in), 1/sqrt(in)). ValueError unless in and out are
  /// positive.
  explicit Linear(const Options& options);

  /// (..., in) -> (..., out)
  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;

 public:
  Tensor& weight;  ///< (out, in)
  Tensor& bias;    ///< (out); undefined where there is none
};

}  // namespace tutti::nn
