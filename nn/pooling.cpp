#include "pooling.h"

#include "functional/spatial.h"

namespace tutti::nn {
namespace {

template <class Options>
PoolOptions checked(const char* name, const Options& o) {
  const PoolOptions given{
      .kernel = o.kernel.values(), .stride = o.stride.values(), .padding = o.padding.values()};
  return pool_options(name, given, 2);
}

void expect_rank4(const Layer& layer, const Tensor& input) {
  if (input.rank() != 4)
    fail<ShapeError>("{}: expected an input (N, C, H, W), got shape {}", layer.error_name(),
                     tutti::to_string(input.shape()));
}

std::string describe_window(const PoolOptions& o) {
  return fmt::format("kernel={}, stride={}, padding={}", to_short_string(o.kernel),
                     to_short_string(o.stride), to_short_string(o.padding));
}

}  // namespace

MaxPool2d::MaxPool2d(const Options& options) : options_(checked("MaxPool2d", options)) {}

Tensor MaxPool2d::forward(const Tensor& input) {
  expect_rank4(*this, input);
  return max_pool(input, options_);
}

std::string MaxPool2d::describe() const { return describe_window(options_); }

AvgPool2d::AvgPool2d(const Options& options) : options_(checked("AvgPool2d", options)) {
  options_.count_include_pad = options.count_include_pad;
}

Tensor AvgPool2d::forward(const Tensor& input) {
  expect_rank4(*this, input);
  return avg_pool(input, options_);
}

std::string AvgPool2d::describe() const {
  return describe_window(options_) +
         (options_.count_include_pad ? "" : ", count_include_pad=false");
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(const Options& options)
    : output_(expand_option("AdaptiveAvgPool2d", "output", options.output.values(), 2, 1)) {}

Tensor AdaptiveAvgPool2d::forward(const Tensor& input) {
  expect_rank4(*this, input);
  return adaptive_avg_pool(input, output_);
}

std::string AdaptiveAvgPool2d::describe() const { return "output=" + to_short_string(output_); }

}  // namespace tutti::nn
