// Networks that classify each pixel, on a dilated ResNet: FCN (Long et al., 2015) and DeepLabV3
// (Chen et al., 2017), as torchvision builds them. Parameters have torchvision's names, so that
// weights can be exchanged with it.
#pragma once

#include "../functional/loss.h"
#include "../module_list.h"
#include "resnet.h"

namespace tutti::nn {

/// Atrous spatial pyramid pooling: 3x3 convolutions with dilations of 12, 24 and 36, one of 1x1,
/// and the average over the image, side by side. The average has one value for each channel and
/// image, so in training its batch normalisation needs several images, which with synchronised
/// statistics may be those of other ranks.
class ASPP : public Layer {
 public:
  struct Options {
    std::int64_t in = 0;
    std::int64_t out = 256;
  };
  explicit ASPP(const Options& options);

  /// Maps (N, in, H, W) to (N, out, H, W).
  Tensor forward(const Tensor& x) override;

 private:
  ModuleList& convs_;
  Layer& project_;
};

/// The options of FCN and DeepLabV3.
struct SegmentationNetworkOptions {
  /// The depth of the ResNet: 50, 101 or 152.
  std::int64_t depth = 50;
  std::int64_t classes = 21;
  /// Whether a second head classifies the pixels from the third stage, for a loss in training.
  bool auxiliary = false;
  /// The number of channels of the images.
  std::int64_t channels = 3;
};

/// What FCN and DeepLabV3 share: the backbone, one or two heads, and the loss.
class SegmentationNetwork : public LayerWith<SegmentationNetworkOptions> {
 public:
  /// The outputs of the heads at the backbone's resolution, an eighth of that of the images.
  struct Logits {
    Tensor main;
    Tensor auxiliary;  ///< undefined without an auxiliary head
  };

  /// Maps images (N, channels, H, W) to logits (N, classes, H, W), upsampled bilinearly.
  Tensor forward(const Tensor& x) override;
  /// Returns the logits of both heads before they are upsampled.
  Logits logits(const Tensor& x);
  /// Returns cross_entropy() of the upsampled logits and `targets` (N, H, W), plus that of the
  /// auxiliary head times `auxiliary_weight`. Of each head it keeps the small logits' gradient path
  /// and one large tensor: the upsampled logits, which backward turns into their gradient.
  Tensor loss(const Tensor& x, const Tensor& targets, const CrossEntropyOptions& options = {},
              double auxiliary_weight = 0.5) {
    return loss(logits(x), targets, options, auxiliary_weight);
  }
  /// Returns the same of logits that logits() has returned.
  static Tensor loss(const Logits& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {}, double auxiliary_weight = 0.5);
  std::string describe() const override;

  /// Its "fc" is an Identity.
  ResNet& backbone;
  /// The last convolution is the child "4" of each head; replace_child("classifier.4", ...) puts
  /// one for other classes in its place.
  Layer& classifier;
  /// Null without an auxiliary head.
  Layer* aux_classifier = nullptr;

 protected:
  SegmentationNetwork(const Options& options, std::shared_ptr<Layer> head);
};

/// A fully convolutional network: its head has a 3x3 convolution on the last stage.
class FCN : public SegmentationNetwork {
 public:
  /// ValueError for a depth without bottlenecks, or for classes or channels below 1.
  explicit FCN(const Options& options);
};

/// DeepLabV3: its head has ASPP and a 3x3 convolution on the last stage.
class DeepLabV3 : public SegmentationNetwork {
 public:
  /// ValueError for a depth without bottlenecks, or for classes or channels below 1.
  explicit DeepLabV3(const Options& options);
};

/// Returns the names that segmentation_network() knows: "fcn_resnet50", "fcn_resnet101",
/// "deeplabv3_resnet50" and "deeplabv3_resnet101".
std::vector<std::string> segmentation_network_names();

/// Makes the network of this name, which sets the depth. ValueError that lists the names for
/// another one.
std::shared_ptr<SegmentationNetwork> segmentation_network(
    const std::string& name, SegmentationNetwork::Options options = {});

}  // namespace tutti::nn
