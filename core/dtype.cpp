#include "dtype.h"

#include <array>

namespace tutti {
namespace {

struct DTypeProperties {
  const char* name;
  std::size_t size;
  bool floating;
};

constexpr std::array<DTypeProperties, 7> table{{{"float32", 4, true},
                                                {"float64", 8, true},
                                                {"bfloat16", 2, true},
                                                {"float16", 2, true},
                                                {"int64", 8, false},
                                                {"uint8", 1, false},
                                                {"bool", 1, false}}};

const DTypeProperties& entry(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  if (number >= table.size()) fail<DTypeError>("the number {} is no dtype", number);
  return table[number];
}

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).size; }
bool is_floating(DType dtype) { return entry(dtype).floating; }
std::string to_string(DType dtype) { return entry(dtype).name; }

DType dtype_from_string(const std::string& name) {
  std::string names;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (name == table[i].name) return static_cast<DType>(i);
    names += (i ? ", " : "") + std::string(table[i].name);
  }
  fail<ValueError>("unknown dtype '{}': expected one of {}", name, names);
}

std::uint16_t Float16::encode(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 (whose last mantissa bit is 2^-24) makes the FPU do the rounding.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float Float16::decode(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u,
                      mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace tutti
