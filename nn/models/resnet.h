// The residual networks of He et al., "Deep residual learning for image recognition" (2015):
// ResNet-20/32/44/56 for small images (section 4.2), and ResNet-18/34/50/101/152 as torchvision
// builds them, with the stride of a bottleneck in its 3x3 convolution. ResNeXt (Xie et al., 2016)
// and Wide ResNet (Zagoruyko and Komodakis, 2016) have other bottlenecks. Parameters have
// torchvision's names, so that weights can be exchanged with it.
#pragma once

#include "../batch_norm/layer.h"
#include "../conv.h"
#include "../linear.h"
#include "../pooling.h"
#include "../sequential.h"

#include <array>

namespace tutti::nn {

/// The shortcut of a block that changes the shape: a 1x1 convolution and a batch normalisation.
class Projection : public Sequential {
 public:
  struct Options {
    std::int64_t in = 0, out = 0, stride = 1;
  };
  explicit Projection(const Options& options);

  /// Returns no pair in a derived class, like that of every class here (see Sequential).
  std::vector<ConsecutiveChildren> consecutive_children() const override;

  Child<Conv2d> conv;
  BatchNorm2d& bn;
};

/// A block of two 3x3 convolutions with a shortcut around them.
class BasicBlock : public Layer {
 public:
  struct Options {
    std::int64_t in = 0, out = 0, stride = 1;
    /// Selects the shortcut of a block that changes the shape: a 1x1 convolution (option B of the
    /// paper), or every stride-th position with zeros for the new channels, which has no parameters
    /// (option A).
    bool project = true;
  };
  explicit BasicBlock(const Options& options);

  /// Maps (N, in, H, W) to (N, out, ceil(H / stride), ceil(W / stride)).
  Tensor forward(const Tensor& x) override;
  std::vector<ConsecutiveChildren> consecutive_children() const override;

 private:
  Options options_;

 public:
  Child<Conv2d> conv1;
  BatchNorm2d& bn1;
  Child<Conv2d> conv2;
  BatchNorm2d& bn2;
  /// Null if the shortcut has no parameters.
  Projection* downsample = nullptr;
};

/// A block of a 1x1, a 3x3 and a 1x1 convolution with a shortcut around them. Its output has
/// 4 * width channels.
class Bottleneck : public Layer {
 public:
  struct Options {
    std::int64_t in = 0, width = 0, stride = 1;
    /// The number of groups of the 3x3 convolution, and the number of channels of each at a width
    /// of 64: the convolution has width * width_per_group / 64 * groups channels. None of the three
    /// may exceed 2^20 (ValueError).
    std::int64_t groups = 1, width_per_group = 64;
    /// The dilation of the 3x3 convolution, which is also its padding.
    std::int64_t dilation = 1;
  };
  explicit Bottleneck(const Options& options);

  Tensor forward(const Tensor& x) override;
  std::vector<ConsecutiveChildren> consecutive_children() const override;

  Child<Conv2d> conv1;
  BatchNorm2d& bn1;
  Child<Conv2d> conv2;
  BatchNorm2d& bn2;
  Child<Conv2d> conv3;
  BatchNorm2d& bn3;
  Projection* downsample = nullptr;
};

/// A residual network that classifies images.
class ResNet : public Layer {
 public:
  struct Options {
    /// 20, 32, 44, 56 (for small images) or 18, 34, 50, 101, 152.
    std::int64_t depth = 18;
    /// The number of classes; 0 stands for 10 in networks for small images, for 1000 in the others.
    std::int64_t classes = 0;
    /// The number of channels of the images.
    std::int64_t channels = 3;
    /// Whether the weight of the last normalisation of each block starts at 0, which makes the
    /// block an identity at first.
    bool zero_init_residual = false;
    /// ResNeXt: the number of groups of each 3x3 convolution, and the number of channels of a group
    /// in the first stage. A Wide ResNet has one group that is wider than 64. Both need a depth
    /// with bottlenecks (50, 101 or 152).
    std::int64_t groups = 1;
    std::int64_t width_per_group = 64;
    /// Whether each stage after the first dilates its 3x3 convolutions, by twice the dilation of
    /// the stage before, instead of halving the sizes: {false, true, true} keeps an eighth of the
    /// sizes of the images, as dense prediction wants. Needs a depth with bottlenecks.
    std::array<bool, 3> replace_stride_with_dilation = {};
  };
  /// Draws the weights of convolutions from N(0, 2 / fan_out), as torchvision does. ValueError for
  /// another depth, for negative classes, for channels, groups or a width below 1, for groups or a
  /// width above 2^20, or for groups, a width or dilation in a network without bottlenecks.
  explicit ResNet(const Options& options);

  /// Maps images (N, channels, H, W) to logits (N, classes).
  Tensor forward(const Tensor& x) override;
  std::vector<ConsecutiveChildren> consecutive_children() const override;
  std::string describe() const override;

 private:
  Options options_;

 public:
  Child<Conv2d> conv1;
  BatchNorm2d& bn1;
  /// Null in networks for small images.
  Child<MaxPool2d> maxpool;
  /// The children "layer1", "layer2", ...
  std::vector<Sequential*> stages;
  Child<AdaptiveAvgPool2d> avgpool;
  /// The head. replace_child("fc", ...) puts another layer in its place: a Linear for other
  /// classes, or an Identity, with which forward() returns the features.
  Child<Linear> fc;
};

/// Returns the names that resnet() knows: "resnet20", "resnet32", ..., "resnext50_32x4d", ...,
/// "wide_resnet101_2".
std::vector<std::string> resnet_names();

/// Makes the network of this name; the name sets the depth, and groups and width where it stands
/// for others than 1 and 64. ValueError that lists the names if there is no such network.
std::shared_ptr<ResNet> resnet(const std::string& name, ResNet::Options options = {});

}  // namespace tutti::nn
