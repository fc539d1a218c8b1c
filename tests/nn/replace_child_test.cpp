// Tests of Module::replace_child().
#include "distributed/messages.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/identity.h>
#include <tutti/nn/resnet.h>

#include <algorithm>

namespace tutti {
namespace {

using test::expect_contains;
using test::message_of;

TEST(ReplaceChild, AResNetGoesOnWithAnotherHead) {
  nn::ResNet net({.depth = 20, .classes = 10});
  net.eval();
  const auto old_head = net.children().back().second;
  const auto head = std::make_shared<nn::Linear>(nn::Linear::Options{.in = 64, .out = 3});
  EXPECT_EQ(net.replace_child("fc", head), old_head);
  EXPECT_EQ(net.fc, head.get());
  EXPECT_FALSE(head->is_training());
  EXPECT_EQ(head->path(), "fc");
  EXPECT_EQ(old_head->path(), "");
  const Tensor x = randn({2, 3, 8, 8});
  const Tensor before = net(x);
  EXPECT_EQ(before.shape(), (Shape{2, 3}));
  {
    const NoGrad no_grad;
    head->bias.fill_(100);
  }
  EXPECT_NE(to_vector(net(x)), to_vector(before));
  EXPECT_EQ(net.state_dict().back().second.shape(), Shape{3});
  expect_contains(net.describe(), {"classes=3"});
}

TEST(ReplaceChild, APathReachesALayerOfASequential) {
  nn::Sequential net;
  auto& body = net.add<nn::Sequential>("body");
  body.append<nn::Linear>({.in = 2, .out = 2});
  body.append<nn::ReLU>();
  net.replace_child("body.1", std::make_shared<nn::Identity>());
  const Tensor x = randn({4, 2}), y = net(x);
  const auto values = to_vector(y);
  EXPECT_LT(*std::ranges::min_element(values), 0);  // all of 8 are positive once in 256
  EXPECT_EQ(body.children()[1].second->path(), "body.1");
}

TEST(ReplaceChild, WhatDoesNotFitIsRefusedAndChangesNothing) {
  nn::ResNet net({.depth = 20});
  const auto linear = [](std::int64_t in) {
    return std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = 3});
  };
  const auto error = [&](const std::string& path, const std::shared_ptr<nn::Module>& child) {
    return message_of<ValueError>([&] { net.replace_child(path, child); });
  };
  const auto before = net.named_modules();
  expect_contains(error("head", linear(64)), {"conv1, bn1", "fc", "'head'"});
  expect_contains(error("layer1.7", linear(64)), {"layer1", "0, 1, 2", "'7'"});
  expect_contains(error("", linear(64)), {"name of a child"});
  expect_contains(error("fc", nullptr), {"'fc'", "null"});
  expect_contains(error("fc", linear(65)), {"'fc' (Linear)", "cannot be replaced"});
  expect_contains(error("fc", std::make_shared<nn::Identity>()), {"'fc' (Linear)", "Identity"});
  // A block keeps references to its layers, and so does a class derived from Sequential.
  expect_contains(error("layer2.0.conv1", linear(64)), {"BasicBlock 'layer2.0'", "cannot"});
  EXPECT_EQ(net.named_modules(), before);
  nn::BasicBlock block({.in = 4, .out = 8, .stride = 2});
  expect_contains(message_of<ValueError>([&] { block.replace_child("downsample.0", linear(4)); }),
                  {"Projection 'downsample'", "'0' (Conv2d) cannot be replaced by a Linear"});

  const auto outer = std::make_shared<nn::Sequential>();
  auto& inner = outer->add<nn::Sequential>("inner");
  inner.append<nn::ReLU>();
  expect_contains(message_of<ValueError>([&] { outer->replace_child("inner.0", outer); }),
                  {"contains this module"});
}

}  // namespace
}  // namespace tutti
