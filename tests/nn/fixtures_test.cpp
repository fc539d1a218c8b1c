// Forward and backward of every layer against PyTorch's results (tests/fixtures/make_layers.py), in
// float64 and float32, and in every memory format.
#include "fixture.h"

#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/conv_transpose.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/group_norm.h>
#include <tutti/nn/identity.h>
#include <tutti/nn/instance_norm.h>
#include <tutti/nn/layer_norm.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/loss.h>
#include <tutti/nn/pooling.h>
#include <tutti/nn/sequential.h>
#include <tutti/nn/upsample.h>

namespace tutti {
namespace {

using namespace nn;

constexpr auto contiguous = MemoryFormat::contiguous, channels_last = MemoryFormat::channels_last;

double tolerance_of(DType dtype) { return dtype == float64 ? 1e-10 : 1e-5; }

// The tensors of one file. It runs a layer on each of its cases.
class Family {
 public:
  explicit Family(const std::string& name)
      : all_(read_fixture("layers_" + name + ".safetensors")) {}

  // Every case must have been checked: a wrong name in a test could hide one.
  ~Family() {
    for (const auto& [key, tensor] : all_)
      EXPECT_TRUE(checked_.count(key.substr(0, key.find('.')))) << "nothing checked " << key;
  }

  template <class L>
  void check(const std::string& name, const typename L::Options& options, bool training = true) {
    check_made(
        name, [&] { return std::make_shared<L>(options); }, training);
  }
  template <class L>
  void check(const std::string& name) {
    check_made(
        name, [] { return std::make_shared<L>(); }, true);
  }
  template <class Make>
  void check_made(const std::string& name, const Make& make, bool training) {
    checked_[name] = true;
    for (const DType dtype : {float64, float32}) {
      run(name, *make(), training, dtype, contiguous, contiguous);
      if (at(name + ".x").rank() < 4) continue;
      run(name, *make(), training, dtype, channels_last, channels_last);
      run(name, *make(), training, dtype, channels_last, contiguous);
    }
  }

  template <class Loss>
  void check_loss(const std::string& name, typename Loss::Options options) {
    checked_[name] = true;
    if constexpr (requires { options.weight; })
      if (all_.count(name + ".weight")) options.weight = at(name + ".weight");
    if constexpr (requires { options.pos_weight; })
      if (all_.count(name + ".pos_weight")) options.pos_weight = at(name + ".pos_weight");
    for (const DType dtype : {float64, float32}) {
      SCOPED_TRACE(name + " in " + to_string(dtype));
      const double tolerance = tolerance_of(dtype);
      const Tensor x = leaf(at(name + ".x"), dtype), stored = at(name + ".target");
      const Tensor target = is_floating(stored.dtype()) ? leaf(stored, dtype) : stored;
      Loss loss(options);
      loss.to(dtype);
      const Tensor y = loss(x, target);
      EXPECT_LT(distance(y.detach(), at(name + ".y")), tolerance);
      y.backward(at(name + ".gy").to(dtype));
      EXPECT_LT(distance(x.grad(), at(name + ".gx")), tolerance);
      if (all_.count(name + ".gt")) {
        EXPECT_LT(distance(target.grad(), at(name + ".gt")), tolerance);
      }
    }
  }

 private:
  static Tensor leaf(const Tensor& stored, DType dtype, MemoryFormat format = contiguous) {
    const Tensor x = stored.to(dtype).contiguous(format).clone();
    return x.requires_grad_();
  }

  const Tensor& at(const std::string& key) const {
    const auto found = all_.find(key);
    if (found == all_.end()) throw std::out_of_range("no fixture " + key);
    return found->second;
  }

  // Returns the tensors whose names begin with `prefix`, under names without it.
  StateDict below(const std::string& prefix) const {
    StateDict result;
    for (const auto& [key, tensor] : all_)
      if (key.rfind(prefix, 0) == 0) result.emplace_back(key.substr(prefix.size()), tensor);
    return result;
  }

  void run(const std::string& name, Layer& layer, bool training, DType dtype, MemoryFormat format,
           MemoryFormat gradient_format) const {
    SCOPED_TRACE(fmt::format("{} in {}, {}, gradient {}", name, to_string(dtype), to_string(format),
                             to_string(gradient_format)));
    const double tolerance = tolerance_of(dtype);
    layer.to(std::nullopt, dtype, format);
    layer.load_state_dict(below(name + ".state."));
    layer.train(training);
    const Tensor& stored = at(name + ".x");
    const Tensor x = is_floating(stored.dtype()) ? leaf(stored, dtype, format) : stored;
    const Tensor y = layer(x);
    EXPECT_LT(distance(y.detach(), at(name + ".y")), tolerance);
    EXPECT_EQ(y.dtype(), dtype);
    if (y.rank() >= 4 && layer.type_name() != "LayerNorm") {  // LayerNorm is row-major
      EXPECT_TRUE(y.is_contiguous(format));
    }

    y.backward(at(name + ".gy").to(dtype).contiguous(gradient_format));
    if (all_.count(name + ".gx")) {
      EXPECT_LT(distance(x.grad(), at(name + ".gx")), tolerance);
    }
    const StateDict gradients = below(name + ".grad."), parameters = layer.named_parameters();
    EXPECT_EQ(parameters.size(), gradients.size());
    for (const auto& [key, gradient] : gradients)
      for (const auto& [own, parameter] : parameters)
        if (own == key) {
          EXPECT_LT(distance(parameter.grad(), gradient), tolerance) << key;
        }
    const StateDict buffers = layer.named_buffers();
    for (const auto& [key, after] : below(name + ".after."))
      for (const auto& [own, buffer] : buffers)
        if (own == key) {
          EXPECT_LT(distance(buffer, after), tolerance) << key;
        }
  }

  Tensors all_;
  std::map<std::string, bool> checked_;
};

TEST(LayerFixtures, Linear) {
  Family family("linear");
  family.check<Linear>("linear", {.in = 5, .out = 7});
  family.check<Linear>("linear_no_bias", {.in = 6, .out = 3, .bias = false});
  family.check<Linear>("linear_rank3", {.in = 5, .out = 4});
  family.check<Linear>("linear_rank1", {.in = 5, .out = 4});
}

TEST(LayerFixtures, Convolution) {
  Family family("conv");
  family.check<Conv1d>("conv1d",
                       {.in = 3, .out = 4, .kernel = 3, .stride = 2, .padding = 2, .dilation = 2});
  family.check<Conv2d>("conv2d", {.in = 3, .out = 5, .kernel = 3, .padding = 1});
  family.check<Conv2d>("conv2d_1x1_stride",
                       {.in = 4, .out = 6, .kernel = 1, .stride = 2, .bias = false});
  family.check<Conv2d>("conv2d_stride_7x7",
                       {.in = 3, .out = 4, .kernel = 7, .stride = 2, .padding = 3, .bias = false});
  family.check<Conv2d>("conv2d_uneven", {.in = 2,
                                         .out = 3,
                                         .kernel = {2, 3},
                                         .stride = {1, 2},
                                         .padding = {1, 0},
                                         .dilation = {2, 1}});
  family.check<Conv2d>("conv2d_groups",
                       {.in = 6, .out = 4, .kernel = 3, .padding = 1, .groups = 2});
  family.check<Conv2d>("conv2d_depthwise",
                       {.in = 4, .out = 8, .kernel = 3, .stride = 2, .padding = 1, .groups = 4});
  family.check<Conv3d>(
      "conv3d",
      {.in = 2, .out = 4, .kernel = {3, 2, 1}, .stride = {2, 1, 1}, .padding = {1, 1, 0}});
  family.check<Conv3d>("conv3d_groups",
                       {.in = 4, .out = 4, .kernel = 3, .padding = 1, .groups = 2, .bias = false});
}

TEST(LayerFixtures, TransposedConvolution) {
  Family family("conv_transpose");
  family.check<ConvTranspose1d>("conv_transpose1d", {.in = 3,
                                                     .out = 4,
                                                     .kernel = 3,
                                                     .stride = 2,
                                                     .padding = 1,
                                                     .output_padding = 1,
                                                     .dilation = 2});
  family.check<ConvTranspose2d>("conv_transpose2d_2x2",
                                {.in = 4, .out = 3, .kernel = 2, .stride = 2});
  family.check<ConvTranspose2d>("conv_transpose2d_uneven", {.in = 2,
                                                            .out = 3,
                                                            .kernel = {2, 3},
                                                            .stride = {1, 2},
                                                            .padding = {1, 0},
                                                            .output_padding = {0, 1},
                                                            .dilation = {2, 1}});
  family.check<ConvTranspose2d>(
      "conv_transpose2d_groups",
      {.in = 6, .out = 4, .kernel = 3, .stride = 2, .padding = 1, .groups = 2});
  family.check<ConvTranspose2d>(
      "conv_transpose2d_depthwise",
      {.in = 4, .out = 8, .kernel = 3, .stride = 2, .padding = 1, .groups = 4, .bias = false});
  family.check<ConvTranspose3d>("conv_transpose3d", {.in = 4,
                                                     .out = 2,
                                                     .kernel = {3, 2, 1},
                                                     .stride = {2, 1, 1},
                                                     .padding = {1, 1, 0},
                                                     .output_padding = {1, 0, 0},
                                                     .groups = 2});
}

TEST(LayerFixtures, BatchNorm) {
  Family family("batch_norm");
  for (const bool training : {true, false}) {
    const std::string mode = training ? "" : "_eval";
    family.check<BatchNorm1d>("batch_norm1d" + mode, {.channels = 5}, training);
    family.check<BatchNorm1d>("batch_norm1d_rank3" + mode, {.channels = 3, .eps = 1e-3}, training);
    family.check<BatchNorm2d>("batch_norm2d" + mode, {.channels = 4, .momentum = 0.3}, training);
    family.check<BatchNorm3d>("batch_norm3d" + mode, {.channels = 3}, training);
    family.check<BatchNorm2d>("batch_norm2d_cumulative" + mode, {.channels = 3, .momentum = {}},
                              training);
    family.check<BatchNorm2d>("batch_norm2d_plain" + mode, {.channels = 3, .affine = false},
                              training);
    family.check<BatchNorm2d>("batch_norm2d_untracked" + mode,
                              {.channels = 3, .track_running_stats = false}, training);
  }
}

TEST(LayerFixtures, LayerNorm) {
  Family family("layer_norm");
  family.check<LayerNorm>("layer_norm", {.shape = {6}});
  family.check<LayerNorm>("layer_norm_rank4", {.shape = {3, 4}, .eps = 1e-3});
  family.check<LayerNorm>("layer_norm_plain", {.shape = {6}, .affine = false});
}

TEST(LayerFixtures, GroupNormAndInstanceNorm) {
  Family family("group_norm");
  family.check<GroupNorm>("group_norm", {.groups = 2, .channels = 6});
  family.check<GroupNorm>("group_norm_rank2", {.groups = 2, .channels = 6, .eps = 1e-3});
  family.check<GroupNorm>("group_norm_rank5", {.groups = 1, .channels = 4});
  family.check<GroupNorm>("group_norm_plain", {.groups = 4, .channels = 4, .affine = false});
  for (const bool training : {true, false}) {
    const std::string mode = training ? "" : "_eval";
    family.check<InstanceNorm1d>("instance_norm1d" + mode, {.channels = 3}, training);
    family.check<InstanceNorm2d>("instance_norm2d" + mode,
                                 {.channels = 3, .eps = 1e-3, .affine = true}, training);
    family.check<InstanceNorm2d>(
        "instance_norm2d_tracked" + mode,
        {.channels = 3, .momentum = 0.3, .affine = true, .track_running_stats = true}, training);
    family.check<InstanceNorm3d>("instance_norm3d" + mode,
                                 {.channels = 2, .track_running_stats = true}, training);
  }
}

TEST(LayerFixtures, ActivationsAndPlainLayers) {
  Family family("activation");
  family.check<ReLU>("relu");
  family.check<Sigmoid>("sigmoid");
  family.check<Tanh>("tanh");
  family.check<Flatten>("flatten");
  family.check<Identity>("identity");
  family.check<Dropout>("dropout_eval", {.p = 0.4}, false);
  family.check_made(
      "sequential",
      [&] {
        auto net = std::make_shared<Sequential>();
        net->append<Linear>({.in = 4, .out = 6});
        net->append<ReLU>();
        net->append<Linear>({.in = 6, .out = 2});
        return net;
      },
      true);
}

TEST(LayerFixtures, Pooling) {
  Family family("pooling");
  family.check<MaxPool2d>("max_pool", {.kernel = 2});
  family.check<MaxPool2d>("max_pool_resnet", {.kernel = 3, .stride = 2, .padding = 1});
  family.check<MaxPool2d>("max_pool_uneven",
                          {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}});
  family.check<AvgPool2d>("avg_pool", {.kernel = 2});
  family.check<AvgPool2d>("avg_pool_padded", {.kernel = 3, .stride = 2, .padding = 1});
  family.check<AvgPool2d>("avg_pool_valid",
                          {.kernel = 3, .stride = 2, .padding = 1, .count_include_pad = false});
  family.check<AdaptiveAvgPool2d>("adaptive_global");
  family.check<AdaptiveAvgPool2d>("adaptive_uneven", {.output = {3, 2}});
  family.check<AdaptiveAvgPool2d>("adaptive_larger", {.output = {5, 4}});
}

TEST(LayerFixtures, LeakyRelu) {
  Family family("gated");
  family.check<LeakyReLU>("leaky_relu");
  family.check<LeakyReLU>("leaky_relu_slope", {.slope = 0.3});
}

TEST(LayerFixtures, PoolingWithMoreWindows) {
  Family family("windows");
  family.check<MaxPool1d>("max_pool1d", {.kernel = 3, .stride = 2, .padding = 1});
  family.check<MaxPool1d>("max_pool1d_ceil", {.kernel = 2, .stride = 3, .ceil_mode = true});
  family.check<MaxPool3d>("max_pool3d",
                          {.kernel = {2, 3, 2}, .stride = {1, 2, 2}, .padding = {1, 1, 0}});
  family.check<MaxPool3d>("max_pool3d_ceil", {.kernel = 2, .ceil_mode = true});
  family.check<MaxPool2d>("max_pool_ceil", {.kernel = 3, .stride = 2, .ceil_mode = true});
  family.check<MaxPool2d>("max_pool_ceil_padded",
                          {.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true});
  family.check<MaxPool2d>("max_pool_ceil_small", {.kernel = 3, .stride = 2, .ceil_mode = true});
  family.check<AvgPool2d>("avg_pool_ceil",
                          {.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true});
  family.check<AvgPool2d>(
      "avg_pool_ceil_valid",
      {.kernel = 3, .stride = 2, .padding = 1, .count_include_pad = false, .ceil_mode = true});
}

TEST(LayerFixtures, Upsampling) {
  Family family("upsample");
  family.check<Upsample>("nearest1d", {.size = {7}});
  family.check<Upsample>("nearest2d", {.scale_factor = {2}});
  family.check<Upsample>("nearest2d_uneven", {.scale_factor = {1.7, 0.6}});
  family.check<Upsample>("nearest3d", {.size = {3, 7, 2}});
  for (const bool align : {false, true}) {
    const auto check = [&](const std::string& name, Upsample::Options options) {
      options.align_corners = align;
      family.check<Upsample>(name + (align ? "_corners" : ""), options);
    };
    constexpr InterpolateMode bilinear = InterpolateMode::bilinear;
    check("linear", {.scale_factor = {2.5}, .mode = InterpolateMode::linear});
    check("bilinear", {.size = {9, 4}, .mode = bilinear});
    check("bilinear8", {.scale_factor = {8}, .mode = bilinear});
    check("bilinear_uneven", {.scale_factor = {1.7, 0.6}, .mode = bilinear});
    check("bilinear_one", {.size = {4, 1}, .mode = bilinear});
    check("trilinear", {.size = {3, 5, 4}, .mode = InterpolateMode::trilinear});
  }
}

TEST(LayerFixtures, Losses) {
  Family family("loss");
  const std::pair<const char*, LossReduction> reductions[] = {
      {"mean", LossReduction::mean}, {"sum", LossReduction::sum}, {"none", LossReduction::none}};
  for (const auto& [name, reduction] : reductions) {
    family.check_loss<CrossEntropyLoss>(std::string("cross_entropy_") + name,
                                        {.reduction = reduction});
    family.check_loss<MSELoss>(std::string("mse_") + name, {.reduction = reduction});
    family.check_loss<BCEWithLogitsLoss>(std::string("bce_logits_") + name,
                                         {.reduction = reduction});
  }
  family.check_loss<BCEWithLogitsLoss>("bce_logits_weighted", {});
  family.check_loss<CrossEntropyLoss>("cross_entropy_ignored", {.ignore_index = 9});
  family.check_loss<CrossEntropyLoss>("cross_entropy_smooth",
                                      {.ignore_index = 9, .label_smoothing = 0.2});
  family.check_loss<CrossEntropyLoss>("cross_entropy_pixels", {});
  for (const auto& [name, reduction] : reductions) {
    family.check_loss<CrossEntropyLoss>(std::string("soft_") + name, {.reduction = reduction});
    family.check_loss<CrossEntropyLoss>(std::string("soft_weighted_") + name,
                                        {.reduction = reduction, .label_smoothing = 0.1});
    family.check_loss<CrossEntropyLoss>(std::string("weighted_") + name,
                                        {.reduction = reduction, .ignore_index = 9});
    family.check_loss<CrossEntropyLoss>(
        std::string("weighted_smooth_") + name,
        {.reduction = reduction, .ignore_index = 9, .label_smoothing = 0.2});
  }
  family.check_loss<CrossEntropyLoss>("soft_pixels", {});
  family.check_loss<CrossEntropyLoss>("weighted_pixels", {.label_smoothing = 0.3});
}

}  // namespace
}  // namespace tutti
