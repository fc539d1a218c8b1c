#include "channel_values.h"

#include "../core/create.h"

#include <cmath>

namespace tutti::nn {

void check_channel_options(const char* layer, const ChannelOptions& o) {
  if (o.channels < 1)
    fail<ValueError>("{}: expected at least 1 channel, got {}", layer, o.channels);
  if (!(std::isfinite(o.eps) && o.eps >= 0))
    fail<ValueError>("{}: expected a finite eps of at least 0, got {}", layer, o.eps);
  if (o.dtype != float32 && o.dtype != float64)
    fail<DTypeError>(
        "{}: expected parameters in float32 or float64, got {}; inputs may have any floating dtype",
        layer, to_string(o.dtype));
}

Tensor channel_values(const ChannelOptions& o, bool present, double value) {
  return present ? full({o.channels}, value, {o.dtype, o.device}) : Tensor();
}

Tensor repeat_channel_values(const Tensor& values, std::int64_t samples) {
  if (!values.defined()) return {};
  return values.reshape({1, values.numel()})
      .expand({samples, values.numel()})
      .reshape({samples * values.numel()})
      .contiguous();  // reshape can return a view of stride 0, which the kernels do not take
}

}  // namespace tutti::nn
