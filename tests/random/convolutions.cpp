// Convolutions over one to three spatial dimensions.
#include "../kernels/random_convolution.h"
#include "operation.h"
#include "reference.h"

#include <tutti/nn/functional/conv.h>

#include <algorithm>

namespace tutti::test {
namespace {

Operation convolution(const std::string& name, decltype(&nn::convolution) call, int rank) {
  return {
      "nn::" + name + "(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&)",
      [=](Draw& draw) {
        const int spatial = rank > 0 ? rank : static_cast<int>(draw.pick(1, 3));
        const std::int64_t size = spatial == 3 ? 4 : spatial == 2 ? 7 : 12;
        ConvolutionCase c = random_convolution(spatial, static_cast<int>(draw.pick(0, 2)),
                                               {2, 3, spatial == 3 ? 2 : 3, size});
        if (draw.batch(9) == 0) c.x[0] = 0;
        const DType dtype = draw.dtype() == bfloat16 && draw.chance(0.5) ? float32 : draw.dtype();
        // A weight may be multiplied by the zeros of padding, where a NaN would stay one.
        const bool is_padded = std::ranges::any_of(c.options.padding, [](auto p) { return p > 0; });
        const Draw weights = is_padded ? Draw({.dtype = dtype}) : draw;
        return Trial{
            .inputs = {draw.tensor(c.x), weights.tensor(c.w, Values::normal, dtype),
                       draw.chance(0.6) ? draw.tensor({c.w[0]}, Values::normal, dtype) : Tensor()},
            .call = [=](const auto& in) { return call(in[0], in[1], in[2], c.options); },
            .reference =
                [=](const Arrays& in) {
                  return reference::convolution(in[0], in[1], in[2], c.options);
                },
            .options = c.text(),
            // oneDNN rounds float32 weights to the dtype of x.
            .more_roundings = dtype == draw.dtype() ? 0.0 : 1.0};
      },
      {.gradient_roundings = 0, .takes_infinite = false, .nan_spread = NanSpread::samples}};
}

}  // namespace

Family convolutions() {
  return {"convolutions",
          {convolution("convolution", nn::convolution, 0), convolution("conv1d", nn::conv1d, 1),
           convolution("conv2d", nn::conv2d, 2), convolution("conv3d", nn::conv3d, 3)}};
}

}  // namespace tutti::test
