// A U-Net (Ronneberger et al., 2015) as an example of a network of one's own: skip connections,
// transposed convolutions, and images of any sizes. It is a header, to be copied.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/conv_transpose.h>
#include <tutti/nn/functional/interpolate.h>
#include <tutti/nn/functional/pooling.h>
#include <tutti/nn/module_list.h>

namespace tutti::examples {

/// Two 3x3 convolutions, each with a batch normalisation and a ReLU.
struct DoubleConv : nn::Layer {
  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  nn::Conv2d& conv2;
  nn::BatchNorm2d& bn2;
  DoubleConv(std::int64_t in, std::int64_t out)
      : conv1(add<nn::Conv2d>("conv1", convolution(in, out))),
        bn1(add<nn::BatchNorm2d>("bn1", {.channels = out})),
        conv2(add<nn::Conv2d>("conv2", convolution(out, out))),
        bn2(add<nn::BatchNorm2d>("bn2", {.channels = out})) {}
  Tensor forward(const Tensor& x) override {
    const Tensor y = bn1.forward(conv1(x), {.relu = true});
    return bn2.forward(conv2(y), {.relu = true});
  }
  std::vector<ConsecutiveChildren> consecutive_children() const override {
    return {{"conv1", "bn1"}, {"conv2", "bn2"}};  // for fold_batch_norm()
  }
  static nn::Conv2d::Options convolution(std::int64_t in, std::int64_t out) {
    return {.in = in, .out = out, .kernel = 3, .padding = 1, .bias = false};
  }
};

/// Maps images (N, channels, H, W) to logits (N, classes, H, W), for any sizes from 2^levels on.
struct UNet : nn::Layer {
  struct Options {
    std::int64_t channels = 3, classes = 2;
    std::int64_t width = 64;  ///< the channels at full resolution; each level doubles them
    std::int64_t levels = 4;  ///< how often the sizes are halved
  };
  nn::ModuleList& down;  ///< levels + 1 DoubleConvs, from full resolution on
  nn::ModuleList& up;    ///< transposed convolutions, from the lowest resolution on
  nn::ModuleList& join;  ///< the DoubleConv behind each of them
  nn::Child<nn::Conv2d> head;
  explicit UNet(const Options& o)
      : down(add<nn::ModuleList>("down")),
        up(add<nn::ModuleList>("up")),
        join(add<nn::ModuleList>("join")) {
    const auto width_at = [&](std::int64_t level) { return o.width << level; };
    for (std::int64_t level = 0; level <= o.levels; ++level)
      down.append<DoubleConv>(level == 0 ? o.channels : width_at(level - 1), width_at(level));
    for (std::int64_t level = o.levels - 1; level >= 0; --level) {
      up.append<nn::ConvTranspose2d>(
          {.in = width_at(level + 1), .out = width_at(level), .kernel = 2, .stride = 2});
      join.append<DoubleConv>(2 * width_at(level), width_at(level));
    }
    head = add_replaceable<nn::Conv2d>("head", {.in = o.width, .out = o.classes, .kernel = 1});
  }
  Tensor forward(const Tensor& images) override {
    std::vector<Tensor> skips{down[0](images)};
    for (std::int64_t level = 1; level < down.size(); ++level)
      skips.push_back(down[level](nn::max_pool(skips.back(), {.kernel = {2}})));
    Tensor x = skips.back();
    for (std::int64_t i = 0; i < up.size(); ++i) {
      skips.pop_back();
      x = up[i](x);
      // Pooling rounds odd sizes down, so what comes back may be one pixel smaller than the skip.
      const Dims size{skips.back().size(2), skips.back().size(3)};
      if (x.size(2) != size[0] || x.size(3) != size[1]) x = nn::interpolate(x, {.size = size});
      x = join[i](cat({skips.back(), x}, 1));
    }
    return head(x);
  }
};

}  // namespace tutti::examples
