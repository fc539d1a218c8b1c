#include "spatial.h"

#include <algorithm>
#include <limits>

namespace tutti::nn {
namespace {

// The bound on each number: kernels and oneDNN compute sums and products of two of them.
constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();

bool all_equal(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [&](auto v) { return v == dims[0]; });
}

}  // namespace

Dims expand_option(const char* op, const char* name, const Dims& values, int rank,
                   std::int64_t minimum) {
  if (values.size() != rank && values.size() != 1)
    fail<ValueError>("{}: expected {} for the option {}, got {}", op,
                     rank == 1 ? "1 value" : fmt::format("1 or {} values", rank), name,
                     values.empty() ? "none" : to_string(values));
  for (std::int64_t value : values)
    if (value < minimum)
      fail<ValueError>("{}: expected {} of at least {}, got {}", op, name, minimum,
                       to_string(values));
  return values.size() == rank ? values : Dims::filled(rank, values[0]);
}

Dims output_sizes(const char* op, const Shape& input, const Windows& windows) {
  const auto& [kernel, stride, padding, dilation, ceil_mode] = windows;
  const auto dilated = [&d = dilation] {
    return d == Dims::filled(d.size(), 1) ? "" : fmt::format(" with dilation {}", to_string(d));
  };
  Dims output;
  for (int d = 0; d < kernel.size(); ++d) {
    if (std::max({kernel[d], stride[d], padding[d], dilation[d]}) > largest ||
        input[d + 2] > largest)
      fail<ShapeError>("{}: input {}, kernel {}{}, stride {} and padding {} must not exceed {}", op,
                       to_string(input), to_string(kernel), dilated(), to_string(stride),
                       to_string(padding), largest);
    const std::int64_t padded = input[d + 2] + 2 * padding[d],
                       window = dilation[d] * (kernel[d] - 1) + 1;
    const std::int64_t beyond = ceil_mode ? stride[d] - 1 : 0;  // What a window may reach over.
    if (window > padded + beyond)
      fail<ShapeError>(
          "{}: the kernel {}{} reaches over {} elements, but input {} with padding {} has only {} "
          "there; use a larger input or more padding",
          op, to_string(kernel), dilated(), window, to_string(input), to_string(padding), padded);
    const std::int64_t last = (padded + beyond - window) / stride[d];
    const bool begins_inside = last * stride[d] < input[d + 2] + padding[d];
    output.push_back(ceil_mode && !begins_inside ? last : last + 1);
  }
  return output;
}

Tensor view_per_channel(const Tensor& values, int rank) {
  Shape shape = Dims::filled(rank, 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

std::string to_short_string(const Dims& dims) {
  return !dims.empty() && all_equal(dims) ? std::to_string(dims[0]) : tutti::to_string(dims);
}

}  // namespace tutti::nn
