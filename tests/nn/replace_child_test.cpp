// Tests of replacing a child of a module by name: what follows the replacement, what is refused,
// and ModuleList.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/nn/identity.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/module_list.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace nn;
using test::expect_error;

struct Model : Layer {
  Linear& body = add<Linear>("body", {.in = 3, .out = 4});
  Child<Linear> head = add_replaceable<Linear>("head", {.in = 4, .out = 2});
  Child<Linear> none;
  Tensor forward(const Tensor& x) override { return head(body(x)); }
};

TEST(ReplaceChild, TheNewHeadRunsAndIsListedUnderTheOldName) {
  Model net;
  EXPECT_TRUE(net.head);
  EXPECT_FALSE(net.none);
  const auto head = std::make_shared<Linear>(Linear::Options{.in = 4, .out = 7});
  const auto old = net.replace_child("head", head);
  EXPECT_EQ(net(randn({5, 3})).shape(), (Shape{5, 7}));
  EXPECT_EQ(&*net.head, head.get());
  EXPECT_EQ(net.head->weight.shape(), (Shape{7, 4}));
  EXPECT_EQ(net.named_parameters()[2].first, "head.weight");
  EXPECT_TRUE(net.named_parameters()[2].second.is_same(head->weight));
  EXPECT_EQ(head->path(), "head");
  EXPECT_EQ(old->path(), "");
  EXPECT_EQ(dynamic_cast<Linear&>(*old).weight.shape(), (Shape{2, 4}));
}

TEST(ReplaceChild, AnyLayerMayTakeThePlaceButNotBeUsedAsAnotherClass) {
  Model net;
  net.replace_child("head", std::make_shared<Identity>());
  const Tensor x = randn({5, 3});
  EXPECT_EQ(to_vector(net(x)), to_vector(net.body(x)));
  EXPECT_EQ(&net.head.layer(), &net.child("head"));
  expect_error<ValueError>([&] { return net.head->weight; }, {"child 'head' is a Identity"});
  expect_error<ValueError>([&] { return net.child<Linear>("head").weight; }, {"Identity"});
  expect_error<ValueError>([&] { net.replace_child("head", std::make_shared<ModuleList>()); },
                           {"expected a Layer in the place of child 'head', got a ModuleList"});
}

TEST(ReplaceChild, AChildThatIsHeldByReferenceIsRefused) {
  Model net;
  const Module* const before = &net.child("body");
  expect_error<ValueError>([&] { net.replace_child("body", std::make_shared<Identity>()); },
                           {"Model: child 'body' (Linear) cannot be replaced"});
  EXPECT_EQ(&net.child("body"), before);
  ResNet resnet({.depth = 18});
  for (const char* path : {"bn1", "layer1", "layer2.0.bn1", "layer2.0.downsample.1"})
    expect_error<ValueError>([&] { resnet.replace_child(path, std::make_shared<Identity>()); },
                             {"cannot be replaced"});
}

TEST(ReplaceChild, WhatDoesNotFitIsRefusedAndNothingChanges) {
  const auto outer = std::make_shared<Sequential>();
  auto& inner = outer->append<Sequential>();
  inner.append<Identity>();
  expect_error<ValueError>([&] { outer->replace_child("0.0", nullptr); }, {"null pointer"});
  expect_error<ValueError>([&] { outer->replace_child("0.0", outer); }, {"contains this module"});
  expect_error<ValueError>(
      [&] { outer->replace_child("0.1", std::make_shared<Identity>()); },
      {"Sequential '0': expected the name of one of its children (0), got '1'"});
  expect_error<ValueError>([&] { outer->child("0.0.x"); }, {"(it has none), got 'x'"});
  expect_error<ValueError>([&] { outer->child(""); }, {"got ''"});
  EXPECT_EQ(outer->child("0.0").type_name(), "Identity");
}

TEST(ReplaceChild, ReachesLayersOfASequentialByPath) {
  Sequential net;
  net.append<Linear>({.in = 2, .out = 3});
  auto& inner = net.append<Sequential>();
  inner.append<Linear>({.in = 3, .out = 3});
  net.replace_child("1.0", std::make_shared<Linear>(Linear::Options{.in = 3, .out = 9}));
  EXPECT_EQ(net(randn({4, 2})).shape(), (Shape{4, 9}));
  EXPECT_EQ(net.child<Linear>("1.0").path(), "1.0");
}

TEST(ReplaceChild, ASharedChildStaysInItsOtherPlaces) {
  const auto shared = std::make_shared<Linear>(Linear::Options{.in = 3, .out = 3});
  Sequential net{shared, shared};
  net.replace_child("0", std::make_shared<Identity>());
  EXPECT_EQ(&net.child("1"), shared.get());
  EXPECT_EQ(shared->path(), "1");
  net.replace_child("1", shared);  // By itself: nothing changes.
  EXPECT_EQ(shared->path(), "1");
}

TEST(ReplaceChild, AResNetGetsAnotherHead) {
  ResNet net({.depth = 20, .classes = 10});
  net.replace_child("fc", std::make_shared<Linear>(Linear::Options{.in = 64, .out = 3}));
  const Tensor x = randn({2, 3, 16, 16});
  const Tensor logits = net(x);
  EXPECT_EQ(logits.shape(), (Shape{2, 3}));
  sum(logits).backward();
  EXPECT_TRUE(net.fc->weight.grad().defined());
  net.replace_child("fc", std::make_shared<Identity>());
  EXPECT_EQ(net(x).shape(), (Shape{2, 64}));
}

TEST(ReplaceChild, AResNetGetsOtherConvolutions) {
  for (const std::int64_t depth : {18, 50}) {  // both kinds of blocks
    ResNet net({.depth = depth, .classes = 3});
    const Tensor x = randn({2, 3, 32, 32});
    int count = 0;
    for (const auto& [path, module] : net.named_modules()) {
      const auto* const old = dynamic_cast<const Conv2d*>(module);
      if (!old) continue;
      const auto conv = std::make_shared<Conv2d>(old->options());
      conv->weight.detach().zero_();
      net.replace_child(path, conv);
      EXPECT_EQ(&net.child(path), conv.get());
      ++count;
    }
    EXPECT_EQ(count, depth == 18 ? 20 : 53);
    net.eval();
    EXPECT_EQ(to_vector(net(x)), to_vector(net(zeros_like(x)))) << "the new weights are zeros";
  }
}

// Runs its layers from the last to the first.
struct Reversed : Layer {
  ModuleList& blocks = add<ModuleList>("blocks");
  Reversed() {
    for (int i = 0; i < 3; ++i) blocks.append<Linear>({.in = 2, .out = 2});
  }
  Tensor forward(const Tensor& input) override {
    Tensor x = input;
    for (std::int64_t i = blocks.size() - 1; i >= 0; --i) x = blocks[i](x);
    return x;
  }
};

TEST(ModuleList, NamesItsModulesByTheirIndex) {
  Reversed net;
  EXPECT_EQ(net.named_parameters()[2].first, "blocks.1.weight");
  const Tensor x = randn({4, 2});
  const auto& blocks = net.blocks;
  EXPECT_EQ(to_vector(net(x)), to_vector(blocks[0](blocks[1](blocks[2](x)))));
  net.replace_child("blocks.1", std::make_shared<Identity>());
  EXPECT_EQ(to_vector(net(x)), to_vector(blocks[0](blocks[2](x))));
  expect_error<ValueError>([&] { blocks[3]; },
                           {"ModuleList 'blocks': expected the name of one of"});
}

TEST(ModuleList, TakesExistingModulesOfAnyKind) {
  const auto linear = std::make_shared<Linear>(Linear::Options{.in = 2, .out = 2});
  const ModuleList list{linear, std::make_shared<ModuleList>()};
  EXPECT_EQ(list.size(), 2);
  EXPECT_EQ(&list[0], linear.get());
  expect_error<ValueError>([&] { list[1]; }, {"child '1' is a ModuleList"});
}

}  // namespace
}  // namespace tutti
