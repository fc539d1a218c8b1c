#include "segmentation.h"

#include "../../autograd/functions.h"
#include "../dropout.h"
#include "../functional/interpolate.h"
#include "../functional/pooling.h"
#include "../identity.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace tutti::nn {
namespace {

// A convolution without bias, a batch normalisation and a ReLU. The children are named by numbers
// from `first` on, as in torchvision's Sequential.
class ConvNorm : public Layer {
 public:
  ConvNorm(const Conv2d::Options& options, int first)
      : names_{std::to_string(first), std::to_string(first + 1)},
        conv_(add<Conv2d>(names_.first, options)),
        norm_(add<BatchNorm2d>(names_.second, {.channels = options.out})) {}

  Tensor forward(const Tensor& x) override { return norm_.forward(conv_(x), {.relu = true}); }
  std::vector<ConsecutiveChildren> consecutive_children() const override { return {names_}; }

 private:
  ConsecutiveChildren names_;
  Conv2d& conv_;
  BatchNorm2d& norm_;
};

Conv2d::Options dilated(std::int64_t in, std::int64_t out, std::int64_t dilation) {
  return {
      .in = in, .out = out, .kernel = 3, .padding = dilation, .dilation = dilation, .bias = false};
}

Conv2d::Options pointwise(std::int64_t in, std::int64_t out, bool bias = false) {
  return {.in = in, .out = out, .kernel = 1, .bias = bias};
}

// The branch of ASPP that sees the average over the image everywhere.
class PooledBranch : public ConvNorm {
 public:
  PooledBranch(std::int64_t in, std::int64_t out) : ConvNorm(pointwise(in, out), 1) {}
  Tensor forward(const Tensor& x) override {
    return interpolate(ConvNorm::forward(adaptive_avg_pool(x, {1, 1})),
                       {.size = {x.size(2), x.size(3)}});
  }
};

// Joins the branches of ASPP.
class BranchProjection : public ConvNorm {
 public:
  BranchProjection(std::int64_t in, std::int64_t out)
      : ConvNorm(pointwise(in, out), 0), dropout_(add<Dropout>("3", {.p = 0.5})) {}
  Tensor forward(const Tensor& x) override { return dropout_(ConvNorm::forward(x)); }

 private:
  Dropout& dropout_;
};

class FCNHead : public ConvNorm {
 public:
  FCNHead(std::int64_t in, std::int64_t classes)
      : ConvNorm(dilated(in, in / 4, 1), 0),
        dropout_(add<Dropout>("3", {.p = 0.1})),
        last_(add_replaceable<Conv2d>("4", pointwise(in / 4, classes, true))) {}
  Tensor forward(const Tensor& x) override { return last_(dropout_(ConvNorm::forward(x))); }

 private:
  Dropout& dropout_;
  Child<Conv2d> last_;
};

class DeepLabHead : public ConvNorm {
 public:
  DeepLabHead(std::int64_t in, std::int64_t classes)
      : ConvNorm(dilated(256, 256, 1), 1),
        aspp_(add<ASPP>("0", {.in = in})),
        last_(add_replaceable<Conv2d>("4", pointwise(256, classes, true))) {}
  Tensor forward(const Tensor& x) override { return last_(ConvNorm::forward(aspp_(x))); }

 private:
  ASPP& aspp_;
  Child<Conv2d> last_;
};

constexpr std::int64_t third_stage_channels = 1024, last_stage_channels = 2048;

Tensor upsampled_to(const Tensor& logits, const Tensor& like) {
  return interpolate(logits,
                     {.size = {like.size(-2), like.size(-1)}, .mode = InterpolateMode::bilinear});
}

}  // namespace

ASPP::ASPP(const Options& o)
    : convs_(add<ModuleList>("convs")),
      project_(add<BranchProjection>("project", 5 * o.out, o.out)) {
  convs_.append<ConvNorm>(pointwise(o.in, o.out), 0);
  for (const std::int64_t dilation : {12, 24, 36})
    convs_.append<ConvNorm>(dilated(o.in, o.out, dilation), 0);
  convs_.append<PooledBranch>(o.in, o.out);
}

Tensor ASPP::forward(const Tensor& x) {
  std::vector<Tensor> branches;
  for (std::int64_t i = 0; i < convs_.size(); ++i) branches.push_back(convs_[i](x));
  return project_(cat(branches, 1));
}

SegmentationNetwork::SegmentationNetwork(const Options& options, std::shared_ptr<Layer> head)
    : LayerWith(options),
      backbone(add<ResNet>("backbone", {.depth = options.depth,
                                        .channels = options.channels,
                                        .replace_stride_with_dilation = {false, true, true}})),
      classifier(add_child("classifier", std::move(head))) {
  backbone.replace_child("fc", std::make_shared<Identity>());
  if (options.auxiliary)
    aux_classifier = &add<FCNHead>("aux_classifier", third_stage_channels, options.classes);
}

SegmentationNetwork::Logits SegmentationNetwork::logits(const Tensor& images) {
  Tensor x = backbone.maxpool(backbone.bn1.forward(backbone.conv1(images), {.relu = true}));
  Logits result;
  for (Sequential* stage : backbone.stages) {
    if (aux_classifier && stage == backbone.stages.back()) result.auxiliary = (*aux_classifier)(x);
    x = (*stage)(x);
  }
  result.main = classifier(x);
  return result;
}

Tensor SegmentationNetwork::forward(const Tensor& x) { return upsampled_to(logits(x).main, x); }

Tensor SegmentationNetwork::loss(const Logits& small, const Tensor& targets,
                                 const CrossEntropyOptions& options, double auxiliary_weight) {
  const Tensor loss = cross_entropy(upsampled_to(small.main, targets), targets, options);
  if (!small.auxiliary.defined()) return loss;
  return loss +
         cross_entropy(upsampled_to(small.auxiliary, targets), targets, options) * auxiliary_weight;
}

std::string SegmentationNetwork::describe() const {
  return fmt::format("depth={}, classes={}, channels={}{}", options_.depth, options_.classes,
                     options_.channels, options_.auxiliary ? ", auxiliary=true" : "");
}

FCN::FCN(const Options& options)
    : SegmentationNetwork(options,
                          std::make_shared<FCNHead>(last_stage_channels, options.classes)) {}

DeepLabV3::DeepLabV3(const Options& options)
    : SegmentationNetwork(options,
                          std::make_shared<DeepLabHead>(last_stage_channels, options.classes)) {}

std::vector<std::string> segmentation_network_names() {
  return {"fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101"};
}

std::shared_ptr<SegmentationNetwork> segmentation_network(const std::string& name,
                                                          SegmentationNetwork::Options options) {
  const std::vector<std::string> names = segmentation_network_names();
  if (std::ranges::find(names, name) == names.end())
    fail<ValueError>("segmentation_network: expected one of {}, got '{}'", fmt::join(names, ", "),
                     name);
  options.depth = name.ends_with("101") ? 101 : 50;
  if (name.starts_with("fcn")) return std::make_shared<FCN>(options);
  return std::make_shared<DeepLabV3>(options);
}

}  // namespace tutti::nn
