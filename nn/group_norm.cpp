#include "group_norm.h"

#include "channel_values.h"
#include "functional/group_norm.h"

namespace tutti::nn {
namespace {

ChannelOptions channel_options(const GroupNorm::Options& o) {
  return {o.channels, o.eps, o.dtype, o.device};
}

const GroupNorm::Options& checked(const GroupNorm::Options& o) {
  check_channel_options("GroupNorm", channel_options(o));
  if (o.groups < 1 || o.channels % o.groups != 0)
    fail<ValueError>("GroupNorm: expected groups that divide {} channels, got {}", o.channels,
                     o.groups);
  return o;
}

}  // namespace

GroupNorm::GroupNorm(const Options& options)
    : options_(checked(options)),
      weight(
          add_parameter("weight", channel_values(channel_options(options_), options_.affine, 1))),
      bias(add_parameter("bias", channel_values(channel_options(options_), options_.affine, 0))) {}

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
