#include "sequential.h"

#include <typeinfo>

namespace tutti::nn {

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

std::vector<Module::ConsecutiveChildren> Sequential::consecutive_children() const {
  if (typeid(*this) != typeid(Sequential)) return {};
  return neighbours();
}

std::vector<Module::ConsecutiveChildren> Sequential::neighbours() const {
  std::vector<ConsecutiveChildren> pairs;
  for (std::size_t i = 1; i < children().size(); ++i)
    pairs.push_back({children()[i - 1].first, children()[i].first});
  return pairs;
}

}  // namespace tutti::nn
