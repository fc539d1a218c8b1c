#include "spatial.h"

#include <algorithm>
#include <limits>

namespace tutti::nn {
namespace {

// Of any spatial number: kernels and oneDNN compute with their sums and products of two.
constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();

}  // namespace

Dims spatial_option(const char* op, const char* name, const Dims& values, int rank,
                    std::int64_t least) {
  if (values.size() != rank && values.size() != 1)
    fail<ValueError>("{}: expected 1 or {} values for {}, got {}", op, rank, name,
                     to_string(values));
  for (std::int64_t value : values)
    if (value < least)
      fail<ValueError>("{}: expected {} of at least {}, got {}", op, name, least,
                       to_string(values));
  return values.size() == rank ? values : Dims::filled(rank, values[0]);
}

Dims spatial_output(const char* op, const Shape& input, const Dims& kernel, const Dims& stride,
                    const Dims& padding, const Dims& dilation) {
  Dims output;
  for (int d = 0; d < kernel.size(); ++d) {
    if (std::max({kernel[d], stride[d], padding[d], dilation[d]}) > largest ||
        input[d + 2] > largest)
      fail<ShapeError>(
          "{}: input {}, kernel {}, stride {}, padding {} and dilation {} must not exceed {}", op,
          to_string(input), to_string(kernel), to_string(stride), to_string(padding),
          to_string(dilation), largest);
    const std::int64_t padded = input[d + 2] + 2 * padding[d],
                       reach = dilation[d] * (kernel[d] - 1) + 1;
    if (reach > padded)
      fail<ShapeError>(
          "{}: the kernel {} with dilation {} reaches over {} elements, but input {} with padding "
          "{} has only {} there; use a larger input or more padding",
          op, to_string(kernel), to_string(dilation), reach, to_string(input), to_string(padding),
          padded);
    output.push_back((padded - reach) / stride[d] + 1);
  }
  return output;
}

}  // namespace tutti::nn
