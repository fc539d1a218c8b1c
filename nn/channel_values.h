// Layers that normalise single samples give each sample of each channel a row of its own, so their
// values of channels are repeated for each sample.
#pragma once

#include "../core/tensor.h"

namespace tutti::nn {

/// Repeats values (C) for each sample: (samples C), dense. Gradients flow back through it.
inline Tensor repeat_channel_values(const Tensor& values, std::int64_t samples) {
  if (!values.defined()) return {};
  return values.reshape({1, values.numel()})
      .expand({samples, values.numel()})
      .reshape({samples * values.numel()})
      .contiguous();  // reshape can return a view of stride 0, which the kernels do not take
}

}  // namespace tutti::nn
