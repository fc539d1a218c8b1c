#include "layer_norm.h"

#include "functional/layer_norm.h"

#include <cmath>

namespace tutti::nn {
namespace {

LayerNorm::Options checked(LayerNorm::Options o) {
  if (o.shape.empty())
    fail<ShapeError>("LayerNorm: expected the shape to normalise over, got an empty one");
  for (const std::int64_t size : o.shape)
    if (size < 1)
      fail<ValueError>("LayerNorm: expected sizes of at least 1, got {}", to_string(o.shape));
  if (!(std::isfinite(o.eps) && o.eps >= 0))
    fail<ValueError>("LayerNorm: expected a finite eps of at least 0, got {}", o.eps);
  if (o.dtype != float32 && o.dtype != float64)
    fail<DTypeError>(
        "LayerNorm: expected parameters in float32 or float64, got {}; inputs may have any "
        "floating "
        "dtype",
        to_string(o.dtype));
  return o;
}

}  // namespace

LayerNorm::LayerNorm(Options options)
    : options_(checked(std::move(options))),
      weight(add_parameter("weight", options_.affine
                                         ? ones(options_.shape, {options_.dtype, options_.device})
                                         : Tensor())),
      bias(add_parameter("bias", options_.affine && options_.bias
                                     ? zeros(options_.shape, {options_.dtype, options_.device})
                                     : Tensor())) {}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, options_.shape, weight, bias, options_.eps);
}

std::string LayerNorm::describe() const {
  return fmt::format("{}, eps={}, affine={}, bias={}", tutti::to_string(options_.shape),
                     options_.eps, options_.affine, options_.affine && options_.bias);
}

}  // namespace tutti::nn
