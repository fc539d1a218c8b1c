#include "conv_transpose.h"

#include "functional/spatial.h"
#include "init.h"

namespace tutti::nn {
namespace {

const ConvTranspose::Options& checked(const char* name, const ConvTranspose::Options& o) {
  if (o.in <= 0 || o.out <= 0 || o.groups <= 0 || o.in % o.groups != 0 || o.out % o.groups != 0)
    fail<ValueError>(
        "{}: expected positive in and out that groups divide, got in = {}, out = {}, groups = {}",
        name, o.in, o.out, o.groups);
  return o;
}

ConvTransposeOptions function_options(const char* name, const ConvTranspose::Options& o, int rank) {
  return {
      .stride = expand_option(name, "stride", o.stride.values(), rank, 1),
      .padding = expand_option(name, "padding", o.padding.values(), rank, 0),
      .output_padding = expand_option(name, "output_padding", o.output_padding.values(), rank, 0),
      .dilation = expand_option(name, "dilation", o.dilation.values(), rank, 1),
      .groups = o.groups};
}

Shape transposed_weight_shape(const ConvTranspose::Options& o, const Dims& kernel) {
  Shape shape{o.in, o.out / o.groups};
  for (const std::int64_t size : kernel) shape.push_back(size);
  return shape;
}

}  // namespace

ConvTranspose::ConvTranspose(int spatial, const char* name, const Options& options)
    : options_(checked(name, options)),
      kernel_(expand_option(name, "kernel", options.kernel.values(), spatial, 1)),
      function_options_(function_options(name, options, spatial)),
      weight(add_parameter("weight", empty(transposed_weight_shape(options, kernel_)))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor ConvTranspose::forward(const Tensor& input) {
  if (input.rank() != weight.rank())
    fail<ShapeError>("{}: expected an input of rank {} with {} channels, got shape {}",
                     error_name(), weight.rank(), options_.in, tutti::to_string(input.shape()));
  return conv_transpose(input, weight, bias, function_options_);
}

std::string ConvTranspose::describe() const {
  std::string text =
      fmt::format("{}, {}, kernel={}", options_.in, options_.out, to_short_string(kernel_));
  const auto add = [&](const char* name, const Dims& values, std::int64_t plain) {
    if (!(values == Dims::filled(values.size(), plain)))
      text += fmt::format(", {}={}", name, to_short_string(values));
  };
  add("stride", function_options_.stride, 1);
  add("padding", function_options_.padding, 0);
  add("output_padding", function_options_.output_padding, 0);
  add("dilation", function_options_.dilation, 1);
  if (options_.groups != 1) text += fmt::format(", groups={}", options_.groups);
  if (!options_.bias) text += ", bias=false";
  return text;
}

}  // namespace tutti::nn
