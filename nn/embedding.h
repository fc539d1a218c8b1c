// Embedding: a trained table of rows, looked up by integer.
#pragma once

#include "module.h"

namespace tutti::nn {

class Embedding : public Layer {
 public:
  struct Options {
    std::int64_t count = 0;  ///< rows
    std::int64_t dim = 0;    ///< width of a row
    std::optional<std::int64_t> padding_idx =
        {};  ///< a row that starts at zero and gets no gradient
  };
  /// Rows start as N(0, 1). ValueError unless count and dim are positive and padding_idx is a row.
  explicit Embedding(const Options& options);

  /// `indices` int64 of any shape; the result has shape indices.shape + (dim).
  Tensor forward(const Tensor& indices) override;
  std::string describe() const override;
  const Options& options() const { return options_; }

  Tensor& weight;  ///< (count, dim)

 private:
  Options options_;
};

}  // namespace tutti::nn
