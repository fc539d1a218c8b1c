#include "embedding.h"

#include "functional/embedding.h"
#include "init.h"

namespace tutti::nn {
namespace {

const Embedding::Options& checked(const Embedding::Options& o) {
  if (o.count <= 0 || o.dim <= 0)
    fail<ValueError>("Embedding: expected the options count and dim to be positive, got {} and {}",
                     o.count, o.dim);
  if (o.padding_idx && (*o.padding_idx < 0 || *o.padding_idx >= o.count))
    fail<ValueError>("Embedding: expected padding_idx from 0 to {}, got {}", o.count - 1,
                     *o.padding_idx);
  return o;
}

}  // namespace

Embedding::Embedding(const Options& options)
    : weight(add_parameter("weight", empty({checked(options).count, options.dim}))),
      options_(options) {
  init::normal_(weight);
  if (options.padding_idx) weight.detach().select(0, *options.padding_idx).zero_();
}

Tensor Embedding::forward(const Tensor& indices) {
  return embedding(indices, weight, options_.padding_idx);
}

std::string Embedding::describe() const {
  std::string text = fmt::format("{}, {}", options_.count, options_.dim);
  if (options_.padding_idx) text += fmt::format(", padding_idx={}", *options_.padding_idx);
  return text;
}

}  // namespace tutti::nn
