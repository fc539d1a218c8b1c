// The residual networks of He et al., "Deep residual learning for image recognition" (2015):
// ResNet-20/32/44/56 for small images (section 4.2) and ResNet-18/34/50/101/152 as torchvision
// builds them (the stride of a bottleneck is in its 3x3 convolution), with torchvision's names, so
// that weights travel both ways.
#pragma once

#include "batch_norm/layer.h"
#include "conv.h"
#include "linear.h"
#include "pooling.h"
#include "sequential.h"

namespace tutti::nn {

/// The shortcut of a block that changes the shape: a 1x1 convolution and its normalisation.
class Projection : public Sequential {
 public:
  struct Options {
    std::int64_t in = 0, out = 0, stride = 1;
  };
  explicit Projection(const Options& options);

  /// Returns relu(last(y) + (*this)(x)) and runs all hooks. If both normalisations share their
  /// statistics with the same ranks, they use one collective each way for both.
  Tensor join(BatchNorm2d& last, const Tensor& y, const Tensor& x);

  Conv2d& conv;
  BatchNorm2d& bn;
};

/// Two 3x3 convolutions, and a shortcut around them.
class BasicBlock : public Layer {
 public:
  struct Options {
    std::int64_t in = 0, out = 0, stride = 1;
    /// Where the block changes the shape, its shortcut is a 1x1 convolution (option B of the
    /// paper), else every stride-th position with zeros for the new channels, which has no
    /// parameters (option A).
    bool project = true;
  };
  explicit BasicBlock(const Options& options);

  /// (N, in, H, W) -> (N, out, ceil(H / stride), ceil(W / stride))
  Tensor forward(const Tensor& x) override;

 private:
  Options options_;

 public:
  Conv2d& conv1;
  BatchNorm2d& bn1;
  Conv2d& conv2;
  BatchNorm2d& bn2;
  Projection* downsample = nullptr;  ///< null where there is nothing to project
};

/// 1x1, 3x3 and 1x1 convolutions, and a shortcut around them. The block has 4 * width channels out.
class Bottleneck : public Layer {
 public:
  struct Options {
    std::int64_t in = 0, width = 0, stride = 1;
  };
  explicit Bottleneck(const Options& options);

  Tensor forward(const Tensor& x) override;

  Conv2d& conv1;
  BatchNorm2d& bn1;
  Conv2d& conv2;
  BatchNorm2d& bn2;
  Conv2d& conv3;
  BatchNorm2d& bn3;
  Projection* downsample = nullptr;
};

class ResNet : public Layer {
 public:
  struct Options {
    std::int64_t depth = 18;    ///< 20, 32, 44, 56 (CIFAR style) or 18, 34, 50, 101, 152
    std::int64_t classes = 0;   ///< 0: 10 for the CIFAR style, 1000 for the others
    std::int64_t channels = 3;  ///< of the images
    bool zero_init_residual =
        false;  ///< the last normalisation of each block starts at 0: the block is an identity
  };
  /// Convolutions start as N(0, 2 / fan_out), as in torchvision. ValueError for another depth, or
  /// for negative classes or channels below 1.
  explicit ResNet(const Options& options);

  /// (N, channels, H, W) -> logits (N, classes)
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  Options options_;

 public:
  Conv2d& conv1;
  BatchNorm2d& bn1;
  MaxPool2d* maxpool = nullptr;     ///< not in the CIFAR style
  std::vector<Sequential*> stages;  ///< layer1, layer2, ...
  AdaptiveAvgPool2d* avgpool = nullptr;
  Linear* fc = nullptr;
};

/// The names that resnet() knows: "resnet20", "resnet32", ...
std::vector<std::string> resnet_names();

/// The network called "resnet18", ..., its depth in `options` set by the name. ValueError, listing
/// the names, for another one.
std::shared_ptr<ResNet> resnet(const std::string& name, ResNet::Options options = {});

}  // namespace tutti::nn
