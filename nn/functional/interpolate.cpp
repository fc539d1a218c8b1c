#include "interpolate.h"

#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/kernels.h"
#include "spatial.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti::nn {
namespace {

void check_interpolation(const Tensor& x, const InterpolateOptions& options) {
  if (x.rank() < 3 || x.rank() > 5 || product(x.shape(), 1, x.rank()) == 0)
    fail<ShapeError>(
        "interpolate: expected input (N, C, ...) with one to three spatial dimensions, none but "
        "the batch empty, got shape {}",
        to_string(x.shape()));
  autograd::expect_trainable("interpolate", x);
  const bool nearest = options.mode == InterpolateMode::nearest;
  const int rank = static_cast<int>(options.mode) + 2;  // that the linear modes need
  if (!nearest && x.rank() != rank)
    fail<ValueError>("interpolate: the mode {} needs an input of rank {}, got shape {}",
                     to_string(options.mode), rank, to_string(x.shape()));
  if (nearest && options.align_corners)
    fail<ValueError>("interpolate: align_corners needs a linear mode, got nearest");
  if (options.size.empty() == options.scale_factor.empty())
    fail<ValueError>("interpolate: expected either size or scale_factor, got {}",
                     options.size.empty() ? "neither" : "both");
}

// Returns the factor of each spatial dimension; none where sizes are given.
std::vector<double> factors_of(const Tensor& x, const std::vector<double>& given) {
  const auto rank = static_cast<std::size_t>(x.rank() - 2);
  if (given.size() > 1 && given.size() != rank)
    fail<ValueError>("interpolate: expected 1 or {} numbers for scale_factor, got {}", rank,
                     given.size());
  return given.size() == 1 ? std::vector<double>(rank, given[0]) : given;
}

Shape interpolated_shape(const Tensor& x, const Dims& size, const std::vector<double>& factors) {
  const int rank = x.rank() - 2;
  Dims sizes = size.empty() ? Dims() : expand_option("interpolate", "size", size, rank, 1);
  constexpr double largest = std::numeric_limits<std::int32_t>::max();
  for (std::size_t d = 0; d < factors.size(); ++d) {
    const double scaled =
        std::floor(static_cast<double>(x.size(static_cast<int>(d) + 2)) * factors[d]);
    sizes.push_back(scaled >= 1 && scaled <= largest ? static_cast<std::int64_t>(scaled) : 0);
  }
  Shape shape{x.size(0), x.size(1)};
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] < 1 || static_cast<double>(std::max(sizes[d], x.size(d + 2))) > largest)
      fail<ValueError>("interpolate: expected spatial sizes from 1 to {}, got {} from input {}",
                       largest, to_string(sizes), to_string(x.shape()));
    shape.push_back(sizes[d]);
  }
  return shape;
}

}  // namespace

const char* to_string(InterpolateMode mode) {
  constexpr const char* names[] = {"nearest", "linear", "bilinear", "trilinear"};
  return names[static_cast<int>(mode)];
}

Tensor interpolate(const Tensor& given, const InterpolateOptions& options) {
  check_interpolation(given, options);
  const kernels::InterpolationOptions kernel_options{
      .linear = options.mode != InterpolateMode::nearest,
      .align_corners = options.align_corners,
      .factors = factors_of(given, options.scale_factor)};
  const MemoryFormat format = given.memory_format();
  const Tensor x = given.contiguous(format);
  const TensorOptions kind{x.dtype(), x.device()};
  const Tensor y = empty(interpolated_shape(x, options.size, kernel_options.factors), kind, format);
  const auto& kernels = kernels::on(x.device()).interpolation;
  kernels.forward(x.detach(), kernel_options, y);
  return autograd::record(
      "interpolate", y, {x},
      [&kernels, kernel_options, kind, format, shape = x.shape()](const Tensor& dy) {
        const Tensor dx = empty(shape, kind, format);
        kernels.backward(dy.contiguous(format), kernel_options, dx);
        return dx;
      });
}

}  // namespace tutti::nn
