// The convolution layers and the transposed ones.
#include "conv.h"

#include "conv_transpose.h"
#include "functional/spatial.h"
#include "init.h"

namespace tutti::nn {
namespace {

// Checks the options, and gives those of the windows one number for each spatial dimension.
template <class Options>
Options checked_options(const char* name, Options o, int spatial) {
  if (o.in <= 0 || o.out <= 0)
    fail<ValueError>("{}: expected the options in and out to be positive, got {} and {}", name,
                     o.in, o.out);
  if (o.groups <= 0 || o.in % o.groups != 0 || o.out % o.groups != 0)
    fail<ValueError>("{}: groups must divide in and out, got groups = {}, in = {}, out = {}", name,
                     o.groups, o.in, o.out);
  const auto expand = [&](const char* option, Dims& values, std::int64_t minimum) {
    values = expand_option(name, option, values, spatial, minimum);
  };
  expand("kernel", o.kernel, 1);
  expand("stride", o.stride, 1);
  expand("padding", o.padding, 0);
  if constexpr (requires { o.output_padding; }) expand("output_padding", o.output_padding, 0);
  expand("dilation", o.dilation, 1);
  return o;
}

Shape weight_shape(std::int64_t first, std::int64_t second, const Dims& kernel) {
  Shape shape{first, second};
  for (const std::int64_t size : kernel) shape.push_back(size);
  return shape;
}

void expect_rank(const Layer& layer, const Tensor& input, const Tensor& weight, std::int64_t in) {
  if (input.rank() != weight.rank())
    fail<ShapeError>("{}: expected an input of rank {} with {} channels, got shape {}",
                     layer.error_name(), weight.rank(), in, tutti::to_string(input.shape()));
}

// Returns ", stride=2", or nothing for the usual value.
std::string described(const char* name, const Dims& values, std::int64_t usual) {
  return values == Dims::filled(values.size(), usual)
             ? ""
             : fmt::format(", {}={}", name, to_short_string(values));
}

template <class Options>
std::string described(const Options& o) {
  std::string paddings = described("padding", o.padding, 0);
  if constexpr (requires { o.output_padding; })
    paddings += described("output_padding", o.output_padding, 0);
  return fmt::format(
      "{}, {}, kernel={}{}{}{}{}{}", o.in, o.out, to_short_string(o.kernel),
      described("stride", o.stride, 1), paddings, described("dilation", o.dilation, 1),
      o.groups != 1 ? fmt::format(", groups={}", o.groups) : "", o.bias ? "" : ", bias=false");
}

}  // namespace

Conv::Conv(int spatial, const char* name, const Options& options)
    : options_(checked_options(name, options, spatial)),
      weight(add_parameter("weight", empty(weight_shape(options_.out, options_.in / options_.groups,
                                                        options_.kernel)))),
      bias(add_parameter("bias", options_.bias ? empty({options_.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor Conv::forward(const Tensor& input) {
  expect_rank(*this, input, weight, options_.in);
  return convolution(input, weight, bias,
                     {.stride = options_.stride,
                      .padding = options_.padding,
                      .dilation = options_.dilation,
                      .groups = options_.groups});
}

std::string Conv::describe() const { return described(options_); }

ConvTranspose::ConvTranspose(int spatial, const char* name, const Options& options)
    : options_(checked_options(name, options, spatial)),
      weight(add_parameter("weight", empty(weight_shape(options_.in, options_.out / options_.groups,
                                                        options_.kernel)))),
      bias(add_parameter("bias", options_.bias ? empty({options_.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor ConvTranspose::forward(const Tensor& input) {
  expect_rank(*this, input, weight, options_.in);
  return conv_transpose(input, weight, bias,
                        {.stride = options_.stride,
                         .padding = options_.padding,
                         .output_padding = options_.output_padding,
                         .dilation = options_.dilation,
                         .groups = options_.groups});
}

std::string ConvTranspose::describe() const { return described(options_); }

}  // namespace tutti::nn
