#include "group_norm.h"

#include "functional/group_norm.h"

#include <cmath>

namespace tutti::nn {
namespace {

const GroupNorm::Options& checked(const GroupNorm::Options& o) {
  if (o.channels < 1)
    fail<ValueError>("GroupNorm: expected at least 1 channel, got {}", o.channels);
  if (o.groups < 1 || o.channels % o.groups != 0)
    fail<ValueError>("GroupNorm: expected groups that divide {} channels, got {}", o.channels,
                     o.groups);
  if (!(std::isfinite(o.eps) && o.eps >= 0))
    fail<ValueError>("GroupNorm: expected a finite eps of at least 0, got {}", o.eps);
  if (o.dtype != float32 && o.dtype != float64)
    fail<DTypeError>(
        "GroupNorm: expected parameters in float32 or float64, got {}; inputs may have any "
        "floating dtype",
        to_string(o.dtype));
  return o;
}

Tensor parameter(const GroupNorm::Options& o, double value) {
  return o.affine ? full({o.channels}, value, {o.dtype, o.device}) : Tensor();
}

}  // namespace

GroupNorm::GroupNorm(const Options& options)
    : options_(checked(options)),
      weight(add_parameter("weight", parameter(options_, 1))),
      bias(add_parameter("bias", parameter(options_, 0))) {}

Tensor GroupNorm::forward(const Tensor& x) {
  if (x.rank() < 2 || x.size(1) != options_.channels)
    fail<ShapeError>("{}: expected input of shape (N, {}, ...), got {}", error_name(),
                     options_.channels, tutti::to_string(x.shape()));
  return group_norm(x, options_.groups, weight, bias, options_.eps);
}

std::string GroupNorm::describe() const {
  return fmt::format("{}, {}, eps={}, affine={}", options_.groups, options_.channels, options_.eps,
                     options_.affine);
}

}  // namespace tutti::nn
