// What the normalisations share: checks of the layers' options and of the functions' tensors, and
// values of channels, which layers that normalise single samples repeat for each sample. An
// implementation detail of nn/.
#pragma once

#include "../autograd/operation.h"

#include <cmath>

namespace tutti::nn {

/// Throws a ValueError for an eps that is negative or not finite.
inline void check_eps(const char* op, double eps) {
  if (!(std::isfinite(eps) && eps >= 0))
    fail<ValueError>("{}: expected a finite eps of at least 0, got {}", op, eps);
}

/// Throws for options that all layers refuse, with the name of the layer.
template <class Options>
void check_normalization(const char* layer, const Options& o) {
  check_eps(layer, o.eps);
  if (o.dtype != float32 && o.dtype != float64)
    fail<DTypeError>(
        "{}: expected parameters and statistics in float32 or float64, got {}; inputs may have any "
        "floating dtype",
        layer, to_string(o.dtype));
}

/// The same for layers with channels.
template <class Options>
void check_channels(const char* layer, const Options& o) {
  if (o.channels < 1)
    fail<ValueError>("{}: expected the option channels to be at least 1, got {}", layer,
                     o.channels);
  check_normalization(layer, o);
}

/// Returns one value for each channel, or the undefined tensor unless `present`.
template <class Options>
Tensor channel_values(const Options& o, bool present, double value) {
  return present ? full({o.channels}, value, {o.dtype, o.device}) : Tensor();
}

/// Throws a ShapeError, DTypeError or DeviceError unless `x` can be normalised with this weight and
/// bias, which have the shape `shape` where they are defined.
inline void check_affine(const char* op, const Tensor& x, const Shape& shape, const Tensor& weight,
                         const Tensor& bias) {
  autograd::expect_trainable(op, x);
  for (const Tensor* own : {&weight, &bias}) {
    if (!own->defined()) continue;
    if (!(own->shape() == shape))
      fail<ShapeError>("{}: expected weight and bias of shape {} for input {}, got {}", op,
                       to_string(shape), to_string(x.shape()), to_string(own->shape()));
    if (own->dtype() != float32 && own->dtype() != float64)
      fail<DTypeError>("{}: expected weight and bias in float32 or float64, got {}", op,
                       to_string(own->dtype()));
    if (own->device() != x.device())
      fail<DeviceError>(
          "{}: input is on {}, weight or bias on {}; move one of them with .to(device)", op,
          to_string(x.device()), to_string(own->device()));
  }
}

/// Repeats values (C) for each sample: (samples C), dense. Gradients flow back through it.
inline Tensor repeat_channel_values(const Tensor& values, std::int64_t samples) {
  if (!values.defined()) return {};
  return values.reshape({1, values.numel()})
      .expand({samples, values.numel()})
      .reshape({samples * values.numel()})
      .contiguous();  // reshape can return a view of stride 0, which the kernels do not take
}

}  // namespace tutti::nn
