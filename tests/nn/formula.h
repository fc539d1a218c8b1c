// The formulas that give networks their weights and inputs in the fixtures of
// tests/fixtures/make_resnet.py and make_segmentation.py, and the comparison of a tensor with the
// two numbers that such a fixture has of it.
#pragma once

#include "fixture.h"

#include <cstdint>

namespace tutti {

/// Returns number i of the stream called `name`, in [-1, 1), as formula() in make_resnet.py does.
inline double formula(std::uint64_t seed, std::int64_t i) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) * 0x1p-23 - 1;
}

inline std::uint64_t seed_of(const std::string& name) {
  std::uint64_t seed = 0xCBF29CE484222325ull;
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return seed;
}

/// Returns a float32 tensor of value(u, i) in row-major order, with u from the stream called
/// `name`.
template <class Value>
Tensor make(const std::string& name, const Shape& shape, const Value& value) {
  const Tensor result = empty(shape);
  const std::uint64_t seed = seed_of(name);
  for (std::int64_t i = 0; i < result.numel(); ++i)
    result.data<float>()[i] = static_cast<float>(value(formula(seed, i), i));
  return result;
}

inline Tensor parameter_value(const std::string& name, const Shape& shape) {
  if (shape.size() > 1) {
    const double bound = std::sqrt(6 / static_cast<double>(product(shape, 1, shape.size())));
    return make(name, shape, [=](double u, std::int64_t) { return u * bound; });
  }
  if (name.rfind("fc", 0) == 0) return make(name, shape, [](double u, std::int64_t) { return u; });
  if (name.find("weight") != std::string::npos)
    return make(name, shape, [](double u, std::int64_t) { return 1 + 0.25 * u; });
  return make(name, shape, [kinds = seed_of("kind")](double u, std::int64_t i) {
    const double kind = formula(kinds, i);
    return (kind < -0.25 ? -3.0 : kind < -0.125 ? 1.0 : 3.0) + 0.25 * u;
  });
}

/// Compares the norm and the dot product with a vector from the formula, both relative to the
/// expected norm. A wrong element changes the dot product, a wrong scale changes both.
inline void expect_summary(const std::string& name, const Tensor& own, const Tensor& stored) {
  const auto expected = to_vector(stored);
  ASSERT_TRUE(own.defined()) << name;
  const std::uint64_t seed = seed_of("dot." + name);
  double squares = 0, dot = 0;
  std::int64_t i = 0;
  for (const double v : to_vector(own)) {
    squares += v * v;
    dot += v * formula(seed, i++);
  }
  EXPECT_NEAR(std::sqrt(squares) / expected[0], 1, 1e-4) << name;
  EXPECT_LT(std::abs(dot - expected[1]) / expected[0], 1e-4) << name;
}

}  // namespace tutti
