#include "conv.h"

#include "functional/spatial.h"
#include "init.h"

namespace tutti::nn {
namespace {

const Conv::Options& checked(const char* name, const Conv::Options& o) {
  if (o.in <= 0 || o.out <= 0)
    fail<ValueError>("{}: expected the options in and out to be positive, got {} and {}", name,
                     o.in, o.out);
  if (o.groups <= 0 || o.in % o.groups != 0 || o.out % o.groups != 0)
    fail<ValueError>("{}: groups must divide in and out, got groups = {}, in = {}, out = {}", name,
                     o.groups, o.in, o.out);
  return o;
}

Shape weight_shape(const Conv::Options& o, const Dims& kernel) {
  Shape shape{o.out, o.in / o.groups};
  for (const std::int64_t size : kernel) shape.push_back(size);
  return shape;
}

bool all_are(const Dims& dims, std::int64_t value) {
  return dims == Dims::filled(dims.size(), value);
}

// Returns the options of the convolution. With same_padding, sets cropped[d] to 1 where the padding
// has to be uneven: both sides then get the larger one, and the first output is left out.
ConvOptions conv_options(const char* name, const Conv::Options& o, const Dims& kernel,
                         Dims& cropped) {
  const int spatial = kernel.size();
  ConvOptions result{.stride = expand_option(name, "stride", o.stride.values(), spatial, 1),
                     .padding = expand_option(name, "padding", o.padding.values(), spatial, 0),
                     .dilation = expand_option(name, "dilation", o.dilation.values(), spatial, 1),
                     .groups = o.groups};
  cropped = Dims::filled(spatial, 0);
  if (!o.same_padding) return result;
  if (!all_are(result.stride, 1) || !all_are(result.padding, 0))
    fail<ValueError>("{}: same_padding needs a stride of 1 and no padding, got {} and {}", name,
                     to_string(result.stride), to_string(result.padding));
  for (int d = 0; d < spatial; ++d) {
    std::int64_t zeros = 0;
    if (__builtin_mul_overflow(result.dilation[d], kernel[d] - 1, &zeros))
      fail<ValueError>("{}: same_padding for kernel {} and dilation {} overflows 64 bits", name,
                       to_string(kernel), to_string(result.dilation));
    result.padding[d] = zeros / 2 + zeros % 2;
    cropped[d] = zeros % 2;
  }
  return result;
}

}  // namespace

Conv::Conv(int spatial, const char* name, const Options& options)
    : options_(checked(name, options)),
      kernel_(expand_option(name, "kernel", options.kernel.values(), spatial, 1)),
      conv_options_(conv_options(name, options, kernel_, cropped_)),
      weight(add_parameter("weight", empty(weight_shape(options, kernel_)))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor Conv::forward(const Tensor& input) {
  if (input.rank() != weight.rank())
    fail<ShapeError>("{}: expected an input of rank {} with {} channels, got shape {}",
                     error_name(), weight.rank(), options_.in, tutti::to_string(input.shape()));
  const Tensor y = convolution(input, weight, bias, conv_options_);
  if (all_are(cropped_, 0)) return y;
  Tensor same = y;
  for (int d = 0; d < cropped_.size(); ++d)
    if (cropped_[d]) same = same.slice(d + 2, 1, same.size(d + 2));
  return same.contiguous(y.memory_format());
}

std::string Conv::describe() const {
  std::string text =
      fmt::format("{}, {}, kernel={}", options_.in, options_.out, to_short_string(kernel_));
  if (!all_are(conv_options_.stride, 1))
    text += ", stride=" + to_short_string(conv_options_.stride);
  if (options_.same_padding) text += ", same_padding=true";
  else if (!all_are(conv_options_.padding, 0))
    text += ", padding=" + to_short_string(conv_options_.padding);
  if (!all_are(conv_options_.dilation, 1))
    text += ", dilation=" + to_short_string(conv_options_.dilation);
  if (options_.groups != 1) text += fmt::format(", groups={}", options_.groups);
  if (!options_.bias) text += ", bias=false";
  return text;
}

}  // namespace tutti::nn
