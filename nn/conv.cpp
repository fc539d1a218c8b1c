// The convolution layers and the transposed ones.
#include "conv.h"

#include "conv_transpose.h"
#include "functional/spatial.h"
#include "init.h"

namespace tutti::nn {
namespace {

template <class Options>
const Options& checked(const char* name, const Options& o) {
  if (o.in <= 0 || o.out <= 0)
    fail<ValueError>("{}: expected the options in and out to be positive, got {} and {}", name,
                     o.in, o.out);
  if (o.groups <= 0 || o.in % o.groups != 0 || o.out % o.groups != 0)
    fail<ValueError>("{}: groups must divide in and out, got groups = {}, in = {}, out = {}", name,
                     o.groups, o.in, o.out);
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

bool all_are(const Dims& dims, std::int64_t value) {
  return dims == Dims::filled(dims.size(), value);
}

ConvOptions function_options(const char* name, const Conv::Options& o, int rank) {
  return {.stride = expand_option(name, "stride", o.stride, rank, 1),
          .padding = expand_option(name, "padding", o.padding, rank, 0),
          .dilation = expand_option(name, "dilation", o.dilation, rank, 1),
          .groups = o.groups};
}

ConvTransposeOptions function_options(const char* name, const ConvTranspose::Options& o, int rank) {
  return {.stride = expand_option(name, "stride", o.stride, rank, 1),
          .padding = expand_option(name, "padding", o.padding, rank, 0),
          .output_padding = expand_option(name, "output_padding", o.output_padding, rank, 0),
          .dilation = expand_option(name, "dilation", o.dilation, rank, 1),
          .groups = o.groups};
}

// Returns ", stride=2", or nothing for the usual value.
std::string described(const char* name, const Dims& values, std::int64_t usual) {
  return all_are(values, usual) ? "" : fmt::format(", {}={}", name, to_short_string(values));
}

// `paddings` describes the options between stride and dilation.
template <class Options, class FunctionOptions>
std::string described(const Options& o, const Dims& kernel, const FunctionOptions& of,
                      const std::string& paddings) {
  return fmt::format(
      "{}, {}, kernel={}{}{}{}{}{}", o.in, o.out, to_short_string(kernel),
      described("stride", of.stride, 1), paddings, described("dilation", of.dilation, 1),
      o.groups != 1 ? fmt::format(", groups={}", o.groups) : "", o.bias ? "" : ", bias=false");
}

}  // namespace

Conv::Conv(int spatial, const char* name, const Options& options)
    : options_(checked(name, options)),
      kernel_(expand_option(name, "kernel", options.kernel, spatial, 1)),
      conv_options_(function_options(name, options, spatial)),
      weight(add_parameter("weight",
                           empty(weight_shape(options.out, options.in / options.groups, kernel_)))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor Conv::forward(const Tensor& input) {
  expect_rank(*this, input, weight, options_.in);
  return convolution(input, weight, bias, conv_options_);
}

std::string Conv::describe() const {
  return described(options_, kernel_, conv_options_,
                   described("padding", conv_options_.padding, 0));
}

ConvTranspose::ConvTranspose(int spatial, const char* name, const Options& options)
    : options_(checked(name, options)),
      kernel_(expand_option(name, "kernel", options.kernel, spatial, 1)),
      function_options_(function_options(name, options, spatial)),
      weight(add_parameter("weight",
                           empty(weight_shape(options.in, options.out / options.groups, kernel_)))),
      bias(add_parameter("bias", options.bias ? empty({options.out}) : Tensor())) {
  init::default_(weight, bias);
}

Tensor ConvTranspose::forward(const Tensor& input) {
  expect_rank(*this, input, weight, options_.in);
  return conv_transpose(input, weight, bias, function_options_);
}

std::string ConvTranspose::describe() const {
  return described(options_, kernel_, function_options_,
                   described("padding", function_options_.padding, 0) +
                       described("output_padding", function_options_.output_padding, 0));
}

}  // namespace tutti::nn
