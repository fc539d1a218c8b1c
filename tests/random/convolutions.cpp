// Convolutions over one to three spatial dimensions.
#include "../kernels/random_convolution.h"
#include "operation.h"
#include "reference.h"

#include <tutti/nn/functional/conv.h>
#include <tutti/nn/functional/conv_transpose.h>

#include <algorithm>

namespace tutti::test {
namespace {

Operation convolution() {
  return {
      "nn::convolution(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&)",
      [=](Draw& draw) {
        const int spatial = static_cast<int>(draw.pick(1, 3));
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
            .call = [=](const auto& in) { return nn::convolution(in[0], in[1], in[2], c.options); },
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

// A transposed convolution maps the output of a random convolution back to its input.
Operation transposed() {
  return {
      "nn::conv_transpose(const Tensor&, const Tensor&, const Tensor&, const "
      "ConvTransposeOptions&)",
      [=](Draw& draw) {
        const int spatial = static_cast<int>(draw.pick(1, 3));
        const std::int64_t size = spatial == 3 ? 4 : spatial == 2 ? 7 : 12;
        ConvolutionCase c = random_convolution(spatial, static_cast<int>(draw.pick(0, 2)),
                                               {2, 3, spatial == 3 ? 2 : 3, size});
        if (draw.batch(9) == 0) c.y[0] = 0;
        const auto& [stride, padding, dilation, groups] = c.options;
        nn::ConvTransposeOptions options{stride, padding, {}, dilation, groups};
        Dims output;
        for (int d = 0; d < spatial; ++d) {
          output.push_back(c.x[d + 2]);
          options.output_padding.push_back(
              c.x[d + 2] -
              ((c.y[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (c.w[d + 2] - 1) + 1));
        }
        const DType dtype = draw.dtype() == bfloat16 && draw.chance(0.5) ? float32 : draw.dtype();
        // What padding leaves out is multiplied by zeros, where a NaN would stay one.
        const bool is_padded = std::ranges::any_of(padding, [](auto p) { return p > 0; });
        const Draw weights({.dtype = dtype}), inputs = is_padded ? weights : draw;
        return Trial{
            .inputs = {inputs.tensor(c.y, Values::normal, draw.dtype()),
                       weights.tensor(c.w, Values::normal, dtype),
                       draw.chance(0.6) ? draw.tensor({c.x[1]}, Values::normal, dtype) : Tensor()},
            .call =
                [=](const auto& in) { return nn::conv_transpose(in[0], in[1], in[2], options); },
            .reference =
                [=](const Arrays& in) {
                  return reference::conv_transpose(in[0], in[1], in[2], c.options, output);
                },
            .options = c.text(),
            // A float32 weight or bias is rounded to the dtype of x, and so is the sum without
            // the bias.
            .more_roundings = dtype == draw.dtype() ? 1.0 : 2.0};
      },
      {.gradient_roundings = 0, .takes_infinite = false, .nan_spread = NanSpread::samples}};
}

}  // namespace

Family convolutions() { return {"convolutions", {convolution(), transposed()}}; }

}  // namespace tutti::test
