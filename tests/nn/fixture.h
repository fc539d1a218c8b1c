// Functions that read the fixtures made by PyTorch and compare tensors with them.
#pragma once

#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

namespace tutti {

using Tensors = std::map<std::string, Tensor>;

inline Tensors read_fixture(const std::string& file) {
  Metadata metadata;
  Tensors result;
  for (auto& [name, tensor] : load_safetensors(TUTTI_TEST_DATA "/" + file, &metadata))
    result.emplace(name, tensor);
  EXPECT_TRUE(metadata.count("torch")) << file << " does not say which PyTorch made it";
  return result;
}

/// Returns |a - b| / |b|, or |a - b| if b is zero; infinity for another shape or a NaN.
inline double distance(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !(a.shape() == b.shape())) return INFINITY;
  const std::vector<double> x = to_vector(a), y = to_vector(b);
  double gap = 0, size = 0;
  for (std::size_t i = 0; i < y.size(); ++i)
    gap += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
  const double result = size > 0 ? std::sqrt(gap / size) : std::sqrt(gap);
  return std::isnan(result) ? INFINITY : result;
}

}  // namespace tutti
