// These functions make and repeat the parameters of layers that normalise single samples: GroupNorm
// and InstanceNorm. They have one value for each channel, in float32 or float64.
#pragma once

#include "../core/tensor.h"

namespace tutti::nn {

/// Holds the options that both layers have.
struct ChannelOptions {
  std::int64_t channels = 0;
  double eps = 0;
  DType dtype = float32;
  Device device = {};
};

/// Throws a ValueError, which begins with the name of the layer, for fewer than one channel or an
/// eps that is negative or not finite; DTypeError for a dtype other than float32 and float64.
void check_channel_options(const char* layer, const ChannelOptions& options);

/// Returns (channels) of this value, or the undefined tensor unless `present`.
Tensor channel_values(const ChannelOptions& options, bool present, double value);

/// Repeats values (C) for each sample: (samples C), dense. Gradients flow back through it.
Tensor repeat_channel_values(const Tensor& values, std::int64_t samples);

}  // namespace tutti::nn
