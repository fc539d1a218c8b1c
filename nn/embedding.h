// Embedding: a layer that looks up rows of a trained table by integer indices.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The options of Embedding.
struct EmbeddingOptions {
  /// The number of rows.
  std::int64_t count = 0;
  /// The number of elements in a row.
  std::int64_t dim = 0;
  /// A row that starts at zero and gets no gradient.
  std::optional<std::int64_t> padding_idx = {};
};

/// A layer that maps each integer index to a row of its weight (nn::embedding).
class Embedding : public LayerWith<EmbeddingOptions> {
 public:
  /// Draws the rows from N(0, 1). ValueError unless count and dim are positive and padding_idx is
  /// the index of a row.
  explicit Embedding(const Options& options);

  /// Takes int64 indices of any shape and returns a tensor of shape indices.shape + (dim,).
  Tensor forward(const Tensor& indices) override;
  std::string describe() const override;

  /// The table has shape (count, dim).
  Tensor& weight;
};

}  // namespace tutti::nn
