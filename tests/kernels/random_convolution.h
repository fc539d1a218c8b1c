// Random convolutions with odd, small sizes that fit together. Windows need not reach the last
// column of an input.
#pragma once

#include "compare.h"

#include <tutti/kernels/options.h>

#include <algorithm>

namespace tutti::test {

struct ConvolutionCase {
  Shape x, w, y;
  kernels::ConvOptions options;
  std::string text() const {
    return "x " + to_string(x) + " w " + to_string(w) + " stride " + to_string(options.stride) +
           " padding " + to_string(options.padding) + " dilation " + to_string(options.dilation) +
           " groups " + std::to_string(options.groups);
  }
};

struct ConvolutionLimits {
  std::int64_t batch, channels;  ///< channels of one group
  std::int64_t kernel, size;     ///< in each spatial dimension
};

/// `kind` 0: one group, 1: several, 2: depthwise.
inline ConvolutionCase random_convolution(int spatial, int kind, const ConvolutionLimits& most) {
  ConvolutionCase c;
  const std::int64_t groups = kind == 0 ? 1 : kind == 1 ? pick(2, 3) : pick(3, 20);
  const std::int64_t ins = kind == 2 ? 1 : pick(1, most.channels);
  const std::int64_t outs = kind == 2 ? pick(1, 2) : pick(1, most.channels);
  c.x = {pick(1, most.batch), ins * groups};
  c.w = {outs * groups, ins};
  c.y = {c.x[0], outs * groups};
  c.options = {{}, {}, {}, groups};
  for (int d = 0; d < spatial; ++d) {
    const std::int64_t kernel = pick(1, most.kernel), stride = pick(1, 3), padding = pick(0, 3),
                       dilation = pick(1, 2), reach = dilation * (kernel - 1) + 1;
    const std::int64_t in = pick(std::max<std::int64_t>(1, reach - 2 * padding), most.size);
    c.x.push_back(in);
    c.w.push_back(kernel);
    c.y.push_back((in + 2 * padding - reach) / stride + 1);
    c.options.stride.push_back(stride);
    c.options.padding.push_back(padding);
    c.options.dilation.push_back(dilation);
  }
  return c;
}

}  // namespace tutti::test
