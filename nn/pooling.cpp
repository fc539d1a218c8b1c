#include "pooling.h"

#include "functional/spatial.h"

#include <array>

namespace tutti::nn {
namespace {

template <class Options>
PoolOptions checked(const char* name, const Options& o, int spatial) {
  const PoolOptions given{
      .kernel = o.kernel, .stride = o.stride, .padding = o.padding, .ceil_mode = o.ceil_mode};
  return pool_options(name, given, spatial);
}

void expect_spatial(const Layer& layer, const Tensor& input, int spatial) {
  constexpr std::array shapes{"(N, C, L)", "(N, C, H, W)", "(N, C, D, H, W)"};
  if (input.rank() != spatial + 2)
    fail<ShapeError>("{}: expected an input {}, got shape {}", layer.error_name(),
                     shapes.at(static_cast<std::size_t>(spatial - 1)),
                     tutti::to_string(input.shape()));
}

std::string describe_window(const PoolOptions& o) {
  return fmt::format("kernel={}, stride={}, padding={}{}", to_short_string(o.kernel),
                     to_short_string(o.stride), to_short_string(o.padding),
                     o.ceil_mode ? ", ceil_mode=true" : "");
}

}  // namespace

MaxPool::MaxPool(int spatial, const char* name, const Options& options)
    : options_(checked(name, options, spatial)) {}

Tensor MaxPool::forward(const Tensor& input) {
  expect_spatial(*this, input, options_.kernel.size());
  return max_pool(input, options_);
}

std::string MaxPool::describe() const { return describe_window(options_); }

AvgPool2d::AvgPool2d(const Options& options) : options_(checked("AvgPool2d", options, 2)) {
  options_.count_include_pad = options.count_include_pad;
}

Tensor AvgPool2d::forward(const Tensor& input) {
  expect_spatial(*this, input, 2);
  return avg_pool(input, options_);
}

std::string AvgPool2d::describe() const {
  return describe_window(options_) +
         (options_.count_include_pad ? "" : ", count_include_pad=false");
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(const Options& options)
    : output_(expand_option("AdaptiveAvgPool2d", "output", options.output, 2, 1)) {}

Tensor AdaptiveAvgPool2d::forward(const Tensor& input) {
  expect_spatial(*this, input, 2);
  return adaptive_avg_pool(input, output_);
}

std::string AdaptiveAvgPool2d::describe() const { return "output=" + to_short_string(output_); }

}  // namespace tutti::nn
