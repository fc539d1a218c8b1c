// Tests of the layers: errors, describe(), initial values, and the statistics of Dropout.
#include "distributed/messages.h"

#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/identity.h>
#include <tutti/nn/layer_norm.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/loss.h>
#include <tutti/nn/pooling.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tutti {
namespace {

using namespace nn;

constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();

TEST(Layers, RefuseOptionsOutOfRange) {
  EXPECT_THROW(Linear({.in = 0, .out = 3}), ValueError);
  EXPECT_THROW(Linear({.in = 3, .out = -1}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4}), ValueError);  // no kernel
  EXPECT_THROW(Conv2d({.in = 3, .out = 0, .kernel = 3}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = 0}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = {3, 3, 3}}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = 3, .stride = 0}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = 3, .padding = -1}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = 3, .dilation = 0}), ValueError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = 3, .groups = 2}), ValueError);
  EXPECT_THROW(Conv2d({.in = 4, .out = 4, .kernel = 3, .groups = 0}), ValueError);
  EXPECT_THROW(Conv1d({.in = 1 << 30, .out = 1 << 30, .kernel = std::int64_t{1} << 30}),
               ShapeError);  // overflow
  EXPECT_THROW(MaxPool2d({.kernel = 2, .padding = 2}), ValueError);
  EXPECT_THROW(MaxPool2d({.kernel = 2, .padding = huge}), ValueError);
  EXPECT_THROW(AvgPool2d({.kernel = 2, .padding = huge / 2 + 1}), ValueError);
  EXPECT_THROW(Conv2d({.in = 1, .out = 1, .kernel = huge}), ShapeError);
  EXPECT_THROW(MaxPool2d({}), ValueError);
  EXPECT_THROW(MaxPool1d({.kernel = {2, 2}}), ValueError);
  EXPECT_THROW(MaxPool3d({.kernel = 2, .stride = 0}), ValueError);
  EXPECT_THROW(LeakyReLU({.slope = INFINITY}), ValueError);
  EXPECT_THROW(AvgPool2d({.kernel = 2, .stride = 0}), ValueError);
  EXPECT_THROW(AdaptiveAvgPool2d({.output = 0}), ValueError);
  EXPECT_THROW(Dropout({.p = 1.5}), ValueError);
  EXPECT_THROW(Dropout({.p = std::nan("")}), ValueError);
  EXPECT_THROW(CrossEntropyLoss({.label_smoothing = 1.1}), ValueError);
}

TEST(Layers, RefuseInputsThatDoNotFit) {
  EXPECT_THROW(Linear({.in = 3, .out = 2})(ones({2, 4})), ShapeError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 2, .kernel = 3})(ones({1, 4, 5, 5})), ShapeError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 2, .kernel = 3})(ones({3, 5, 5})), ShapeError);
  EXPECT_THROW(Conv1d({.in = 3, .out = 2, .kernel = 3})(ones({1, 3, 5, 5})), ShapeError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 2, .kernel = 3})(ones({1, 3, 2, 2})), ShapeError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 2, .kernel = 3})(ones({1, 3, 5, 5}, {.dtype = float64})),
               DTypeError);
  for (const std::int64_t size : {huge, huge / 2 + 1, huge / 4 + 1, std::int64_t{1} << 31}) {
    const Tensor x = ones({1, 1, 5, 5});
    EXPECT_THROW(Conv2d({.in = 1, .out = 1, .kernel = 3, .padding = size})(x), ShapeError) << size;
    EXPECT_THROW(Conv2d({.in = 1, .out = 1, .kernel = 3, .dilation = size})(x), ShapeError) << size;
    EXPECT_THROW(Conv2d({.in = 1, .out = 1, .kernel = 3, .stride = size})(x), ShapeError) << size;
    EXPECT_THROW(Conv2d({.in = 1, .out = 1, .kernel = 1, .stride = size, .padding = size})(x),
                 ShapeError)
        << size;
    EXPECT_THROW(MaxPool2d({.kernel = size, .padding = size / 2})(x), ShapeError) << size;
    EXPECT_THROW(AvgPool2d({.kernel = 3, .stride = size})(x), ShapeError) << size;
  }
  EXPECT_THROW(MaxPool2d({.kernel = 2})(ones({3, 4, 4})), ShapeError);
  EXPECT_THROW(MaxPool1d({.kernel = 2})(ones({1, 3, 4, 4})), ShapeError);
  EXPECT_THROW(MaxPool3d({.kernel = 2})(ones({1, 3, 4, 4})), ShapeError);
  // With ceil_mode, a window may be larger than the input by less than the stride.
  EXPECT_THROW(MaxPool1d({.kernel = 4, .stride = 2, .ceil_mode = true})(ones({1, 1, 2})),
               ShapeError);
  EXPECT_THROW(AdaptiveAvgPool2d()(ones({4, 4})), ShapeError);
  EXPECT_THROW(Flatten({.first = 3})(ones({2, 3})), ShapeError);
}

// What a layer of a model refuses, it refuses under its path, once.
TEST(Layers, NameTheirPathInErrors) {
  const auto refused_by = [](const std::shared_ptr<Layer>& layer, const Tensor& x) {
    Sequential net;
    Sequential& block = net.append<Sequential>();
    block.append<Identity>();
    block.add_child("bad", layer);
    return test::message_of<Error>([&] { net(x); });
  };
  const auto convolution = [] {
    return std::make_shared<Conv2d>(Conv2d::Options{.in = 64, .out = 2, .kernel = 3});
  };
  EXPECT_EQ(refused_by(convolution(), ones({8, 32, 5, 5})),
            "Conv2d '0.bad': convolution: expected input with 64 channels, got shape (8, 32, 5, "
            "5)");
  EXPECT_EQ(refused_by(convolution(), ones({64, 5, 5})),
            "Conv2d '0.bad': expected an input of rank 4 with 64 channels, got shape (64, 5, 5)");
  EXPECT_EQ(refused_by(std::make_shared<Linear>(Linear::Options{.in = 3, .out = 2}), ones({2, 4})),
            "Linear '0.bad': linear: expected input (..., 3), got shape (2, 4)");
  EXPECT_EQ(refused_by(std::make_shared<MaxPool2d>(MaxPool2d::Options{.kernel = 2}), ones({4, 4})),
            "MaxPool2d '0.bad': expected an input (N, C, H, W), got shape (4, 4)");
  for (const auto& [layer, name] : std::vector<std::pair<std::shared_ptr<Layer>, std::string>>{
           {std::make_shared<LayerNorm>(LayerNorm::Options{.shape = {7}}), "LayerNorm"},
           {std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 7}), "BatchNorm"},
           {std::make_shared<Flatten>(Flatten::Options{.first = 3}), "Flatten"}}) {
    const std::string text = refused_by(layer, ones({2, 3})), start = name + " '0.bad': ";
    EXPECT_TRUE(text.starts_with(start)) << text;
    EXPECT_EQ(text.find("'0.bad'", start.size()), std::string::npos) << "named twice: " << text;
  }
}

TEST(Layers, PrintTheirOptions) {
  Sequential net;
  net.append<Conv2d>({.in = 3,
                      .out = 4,
                      .kernel = {3, 5},
                      .stride = 2,
                      .padding = {1, 2},
                      .groups = 1,
                      .bias = false});
  net.append<ReLU>();
  net.append<MaxPool2d>({.kernel = 3, .stride = 2, .padding = 1});
  net.append<AvgPool2d>({.kernel = 2, .count_include_pad = false});
  net.append<AdaptiveAvgPool2d>();
  net.append<Flatten>();
  net.append<Dropout>({.p = 0.25});
  net.append<Identity>();
  net.append<Linear>({.in = 4, .out = 2});
  net.append<Linear>({.in = 2, .out = 3, .bias = false});
  EXPECT_EQ(net.to_string(),
            "Sequential()\n"
            "  0: Conv2d(3, 4, kernel=(3, 5), stride=2, padding=(1, 2), bias=false): weight (4, 3, "
            "3, 5)\n"
            "  1: ReLU()\n"
            "  2: MaxPool2d(kernel=3, stride=2, padding=1)\n"
            "  3: AvgPool2d(kernel=2, stride=2, padding=0, count_include_pad=false)\n"
            "  4: AdaptiveAvgPool2d(output=1)\n"
            "  5: Flatten(first=1, last=-1)\n"
            "  6: Dropout(p=0.25)\n"
            "  7: Identity()\n"
            "  8: Linear(4, 2): weight (2, 4), bias (2,)\n"
            "  9: Linear(2, 3, bias=false): weight (3, 2)\n"
            "196 parameters");
  EXPECT_EQ(CrossEntropyLoss().to_string(),
            "CrossEntropyLoss(reduction=mean, ignore_index=-100, label_smoothing=0)\n0 parameters");
}

TEST(Layers, StartAsPyTorchs) {
  const auto bound_of = [](const Tensor& t) {
    double most = 0;
    for (const double v : to_vector(t)) most = std::max(most, std::abs(v));
    return most;
  };
  const Linear linear({.in = 100, .out = 50});
  EXPECT_NEAR(bound_of(linear.weight), 0.1, 1e-3);
  EXPECT_NEAR(bound_of(linear.bias), 0.1, 0.02);
  const Conv2d conv({.in = 8, .out = 64, .kernel = 5, .groups = 2});
  EXPECT_NEAR(bound_of(conv.weight), 0.1, 1e-3);  // fan_in 4 * 25
  EXPECT_NEAR(bound_of(conv.bias), 0.1, 0.02);
}

TEST(Layers, DropoutOf16BitNumbersIsNotBiased) {
  Dropout layer({.p = 0.1});  // 1 / 0.9 in bfloat16 is 0.16% too small
  manual_seed(4);
  const Tensor x = randn({1000}, {bfloat16});
  const auto in = to_vector(x), out = to_vector(layer(x));
  for (std::size_t i = 0; i < in.size(); ++i)
    EXPECT_TRUE(out[i] == 0 ||
                out[i] == BFloat16(static_cast<float>(in[i]) * static_cast<float>(1 / 0.9)))
        << in[i];
  layer.eval();
  EXPECT_TRUE(layer(x).is_same(x));
}

}  // namespace
}  // namespace tutti
