#include "conv.h"

#include "functional/spatial.h"
#include "init.h"

namespace tutti::nn {
namespace {

const Conv::Options& checked(const char* name, const Conv::Options& o) {
  if (o.in <= 0 || o.out <= 0)
    fail<ValueError>("{}: expected positive in and out, got {} and {}", name, o.in, o.out);
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

}  // namespace

Conv::Conv(int spatial, const char* name, const Options& options)
    : options_(checked(name, options)),
      kernel_(expand_option(name, "kernel", options.kernel.values(), spatial, 1)),
      conv_options_{
          .stride = expand_option(name, "stride", options.stride.values(), spatial, 1),
          .padding = expand_option(name, "padding", options.padding.values(), spatial, 0),
          .dilation = expand_option(name, "dilation", options.dilation.values(), spatial, 1),
          .groups = options.groups},
      weight(add_parameter("weight", empty(weight_shape(options, kernel_)))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor Conv::forward(const Tensor& input) {
  if (input.rank() != weight.rank())
    fail<ShapeError>("{}: expected an input of rank {} with {} channels, got shape {}",
                     error_name(), weight.rank(), options_.in, tutti::to_string(input.shape()));
  return convolution(input, weight, bias, conv_options_);
}

std::string Conv::describe() const {
  std::string text =
      fmt::format("{}, {}, kernel={}", options_.in, options_.out, to_short_string(kernel_));
  if (!all_are(conv_options_.stride, 1))
    text += ", stride=" + to_short_string(conv_options_.stride);
  if (!all_are(conv_options_.padding, 0))
    text += ", padding=" + to_short_string(conv_options_.padding);
  if (!all_are(conv_options_.dilation, 1))
    text += ", dilation=" + to_short_string(conv_options_.dilation);
  if (options_.groups != 1) text += fmt::format(", groups={}", options_.groups);
  if (!options_.bias) text += ", bias=false";
  return text;
}

}  // namespace tutti::nn
