#include "sequential.h"

namespace tutti::nn {

Sequential::Sequential(std::initializer_list<std::shared_ptr<Layer>> layers) {
  for (const auto& layer : layers) append_layer(layer);
}

Tensor Sequential::forward(const Tensor& input) {
  Tensor x = input;
  for (const auto& [name, child] : children()) {
    auto* const layer = dynamic_cast<Layer*>(child.get());
    if (!layer)
      fail<Error>(
          "{}: expected every child to be a Layer, which computes one tensor from one tensor; "
          "child '{}' ({}) is not",
          error_name(), name, child->type_name());
    x = (*layer)(x);
  }
  return x;
}

}  // namespace tutti::nn
