#include "resnet.h"

#include "../../autograd/record.h"
#include "../init.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <typeinfo>
#include <utility>

namespace tutti::nn {
namespace {

struct Architecture {
  std::int64_t depth;
  // Whether the network is for small images: it begins with a 3x3 convolution and has three stages
  // of 16, 32 and 64 channels, with shortcuts without parameters.
  bool small_images;
  bool bottleneck;
  std::vector<std::int64_t> blocks;  // The number of blocks in each stage.
};

const std::vector<Architecture>& architectures() {
  static const auto& all = *new std::vector<Architecture>{
      // threads may outlive static objects
      {20, true, false, {3, 3, 3}},     {32, true, false, {5, 5, 5}},
      {44, true, false, {7, 7, 7}},     {56, true, false, {9, 9, 9}},
      {18, false, false, {2, 2, 2, 2}}, {34, false, false, {3, 4, 6, 3}},
      {50, false, true, {3, 4, 6, 3}},  {101, false, true, {3, 4, 23, 3}},
      {152, false, true, {3, 8, 36, 3}}};
  return all;
}

const Architecture& architecture_of(std::int64_t depth) {
  for (const Architecture& architecture : architectures())
    if (architecture.depth == depth) return architecture;
  fail<ValueError>("ResNet: expected a depth of 20, 32, 44, 56, 18, 34, 50, 101 or 152, got {}",
                   depth);
}

struct NamedNetwork {
  std::string name;
  std::int64_t depth, groups = 1, width_per_group = 64;
};

std::vector<NamedNetwork> named_networks() {
  std::vector<NamedNetwork> all;
  for (const Architecture& architecture : architectures())
    all.push_back({fmt::format("resnet{}", architecture.depth), architecture.depth});
  const std::vector<NamedNetwork> variants{{"resnext50_32x4d", 50, 32, 4},
                                           {"resnext101_32x8d", 101, 32, 8},
                                           {"resnext101_64x4d", 101, 64, 4},
                                           {"wide_resnet50_2", 50, 1, 128},
                                           {"wide_resnet101_2", 101, 1, 128}};
  all.insert(all.end(), variants.begin(), variants.end());
  return all;
}

ResNet::Options checked(ResNet::Options options) {
  const Architecture& architecture = architecture_of(options.depth);
  if (options.channels < 1)
    fail<ValueError>("ResNet: expected at least 1 channel, got {}", options.channels);
  if (options.classes < 0)
    fail<ValueError>("ResNet: expected at least 1 class, got {}", options.classes);
  if (options.groups < 1 || options.width_per_group < 1)
    fail<ValueError>("ResNet: expected groups and a width_per_group of at least 1, got {} and {}",
                     options.groups, options.width_per_group);
  if (!architecture.bottleneck && (options.groups != 1 || options.width_per_group != 64))
    fail<ValueError>(
        "ResNet: groups and width_per_group need bottlenecks, which depth {} has not; expected 1 "
        "and 64, got {} and {}; use a depth of 50, 101 or 152",
        options.depth, options.groups, options.width_per_group);
  if (!architecture.bottleneck && options.replace_stride_with_dilation != std::array<bool, 3>{})
    fail<ValueError>(
        "ResNet: replace_stride_with_dilation needs bottlenecks, which depth {} has not; use a "
        "depth of 50, 101 or 152",
        options.depth);
  if (options.classes == 0) options.classes = architecture.small_images ? 10 : 1000;
  return options;
}

Conv2d::Options first_convolution(const ResNet::Options& o) {
  if (architecture_of(o.depth).small_images)
    return {.in = o.channels, .out = 16, .kernel = 3, .padding = 1, .bias = false};
  return {.in = o.channels, .out = 64, .kernel = 7, .stride = 2, .padding = 3, .bias = false};
}

// Returns the number of channels of a bottleneck's 3x3 convolution. The limit keeps it, and the
// 4 * width channels of the output, within 64 bits.
std::int64_t inner(const Bottleneck::Options& o) {
  constexpr std::int64_t limit = 1 << 20;
  for (const std::int64_t value : {o.width, o.width_per_group, o.groups})
    if (value < 1 || value > limit)
      fail<ValueError>(
          "Bottleneck: expected a width, a width_per_group and groups from 1 to {}, got {}, {} and "
          "{}",
          limit, o.width, o.width_per_group, o.groups);
  return o.width * o.width_per_group / 64 * o.groups;
}

// The shortcut without parameters (option A): returns every stride-th position of x, with zeros for
// the new channels on both sides. It takes one pass, in the layout of x.
Tensor pad_shortcut(const Tensor& x, std::int64_t channels, std::int64_t stride) {
  const std::int64_t first = (channels - x.size(1)) / 2, last = first + x.size(1);
  const auto strided = [stride](const Tensor& t) {
    return t.slice(2, 0, t.size(2), stride).slice(3, 0, t.size(3), stride);
  };
  const auto compute = [=](const std::vector<Tensor>& from) {
    const Tensor source = strided(from[0]);
    const Tensor y = empty({source.size(0), channels, source.size(2), source.size(3)},
                           {source.dtype(), source.device()}, from[0].memory_format());
    y.zero_();
    y.slice(1, first, last).copy_(source);
    return y;
  };
  const Tensor y = compute({x.detach()});
  return autograd::record(
      "pad_shortcut", y, {x},
      [=, shape = x.shape(), format = x.memory_format(),
       recipe = autograd::set_recipe(y, "pad_shortcut", {x}, compute)](const Tensor& g) {
        const Tensor gx = empty(shape, {g.dtype(), g.device()}, format);
        gx.zero_();
        strided(gx).copy_(g.slice(1, first, last));
        return gx;
      });
}

}  // namespace

// ---- Blocks.

Projection::Projection(const Options& o)
    : conv(add_replaceable<Conv2d>(
          "0", {.in = o.in, .out = o.out, .kernel = 1, .stride = o.stride, .bias = false})),
      bn(add<BatchNorm2d>("1", {.channels = o.out})) {}

std::vector<Module::ConsecutiveChildren> Projection::consecutive_children() const {
  if (typeid(*this) != typeid(Projection)) return {};
  return neighbours();
}

BasicBlock::BasicBlock(const Options& o)
    : options_(o),
      conv1(add_replaceable<Conv2d>("conv1", {.in = o.in,
                                              .out = o.out,
                                              .kernel = 3,
                                              .stride = o.stride,
                                              .padding = 1,
                                              .bias = false})),
      bn1(add<BatchNorm2d>("bn1", {.channels = o.out})),
      conv2(add_replaceable<Conv2d>(
          "conv2", {.in = o.out, .out = o.out, .kernel = 3, .padding = 1, .bias = false})),
      bn2(add<BatchNorm2d>("bn2", {.channels = o.out})) {
  if (o.project && (o.stride != 1 || o.in != o.out))
    downsample = &add<Projection>("downsample", {.in = o.in, .out = o.out, .stride = o.stride});
}

Tensor BasicBlock::forward(const Tensor& x) {
  const Tensor y = conv2(bn1.forward(conv1(x), {.relu = true}));
  const bool pad = options_.stride != 1 || options_.in != options_.out;
  const Tensor shortcut = downsample ? (*downsample)(x)
                          : pad      ? pad_shortcut(x, options_.out, options_.stride)
                                     : x;
  return bn2.forward(y, {.residual = shortcut, .relu = true});
}

std::vector<Module::ConsecutiveChildren> BasicBlock::consecutive_children() const {
  if (typeid(*this) != typeid(BasicBlock)) return {};
  return {{"conv1", "bn1"}, {"conv2", "bn2"}};
}

Bottleneck::Bottleneck(const Options& o)
    : conv1(add_replaceable<Conv2d>("conv1",
                                    {.in = o.in, .out = inner(o), .kernel = 1, .bias = false})),
      bn1(add<BatchNorm2d>("bn1", {.channels = inner(o)})),
      conv2(add_replaceable<Conv2d>("conv2", {.in = inner(o),
                                              .out = inner(o),
                                              .kernel = 3,
                                              .stride = o.stride,
                                              .padding = o.dilation,
                                              .dilation = o.dilation,
                                              .groups = o.groups,
                                              .bias = false})),
      bn2(add<BatchNorm2d>("bn2", {.channels = inner(o)})),
      conv3(add_replaceable<Conv2d>(
          "conv3", {.in = inner(o), .out = 4 * o.width, .kernel = 1, .bias = false})),
      bn3(add<BatchNorm2d>("bn3", {.channels = 4 * o.width})) {
  if (o.stride != 1 || o.in != 4 * o.width)
    downsample =
        &add<Projection>("downsample", {.in = o.in, .out = 4 * o.width, .stride = o.stride});
}

Tensor Bottleneck::forward(const Tensor& x) {
  const Tensor y = conv3(bn2.forward(conv2(bn1.forward(conv1(x), {.relu = true})), {.relu = true}));
  return bn3.forward(y, {.residual = downsample ? (*downsample)(x) : x, .relu = true});
}

std::vector<Module::ConsecutiveChildren> Bottleneck::consecutive_children() const {
  if (typeid(*this) != typeid(Bottleneck)) return {};
  return {{"conv1", "bn1"}, {"conv2", "bn2"}, {"conv3", "bn3"}};
}

// ---- The network.

ResNet::ResNet(const Options& options)
    : options_(checked(options)),
      conv1(add_replaceable<Conv2d>("conv1", first_convolution(options_))),
      bn1(add<BatchNorm2d>("bn1", {.channels = conv1->options().out})) {
  const Architecture& architecture = architecture_of(options.depth);
  if (!architecture.small_images)
    maxpool = add_replaceable<MaxPool2d>("maxpool", {.kernel = 3, .stride = 2, .padding = 1});
  std::int64_t in = conv1->options().out, width = in, dilation = 1;
  for (std::size_t stage = 0; stage < architecture.blocks.size(); ++stage, width *= 2) {
    auto& blocks = add<Sequential>("layer" + std::to_string(stage + 1));
    stages.push_back(&blocks);
    const bool dilate = stage > 0 && options_.replace_stride_with_dilation.at(stage - 1);
    const std::int64_t dilation_before = std::exchange(dilation, dilate ? 2 * dilation : dilation);
    for (std::int64_t i = 0; i < architecture.blocks[stage]; ++i) {
      const std::int64_t stride = stage > 0 && i == 0 && !dilate ? 2 : 1;
      if (architecture.bottleneck)
        blocks.append<Bottleneck>({.in = in,
                                   .width = width,
                                   .stride = stride,
                                   .groups = options_.groups,
                                   .width_per_group = options_.width_per_group,
                                   .dilation = i == 0 ? dilation_before : dilation});
      else
        blocks.append<BasicBlock>(
            {.in = in, .out = width, .stride = stride, .project = !architecture.small_images});
      in = architecture.bottleneck ? 4 * width : width;
    }
  }
  avgpool = add_replaceable<AdaptiveAvgPool2d>("avgpool");
  fc = add_replaceable<Linear>("fc", {.in = in, .out = options_.classes});

  apply([&](Module& module) {
    if (auto* conv = dynamic_cast<Conv2d*>(&module))
      init::kaiming_normal_(conv->weight, {.fan = init::Fan::out});
    if (!options_.zero_init_residual) return;
    if (auto* block = dynamic_cast<BasicBlock*>(&module)) init::constant_(block->bn2.weight, 0);
    if (auto* block = dynamic_cast<Bottleneck*>(&module)) init::constant_(block->bn3.weight, 0);
  });
}

Tensor ResNet::forward(const Tensor& input) {
  Tensor x = bn1.forward(conv1(input), {.relu = true});
  if (maxpool) x = maxpool(x);
  for (Sequential* stage : stages) x = (*stage)(x);
  return fc(avgpool(x).flatten(1));
}

std::vector<Module::ConsecutiveChildren> ResNet::consecutive_children() const {
  if (typeid(*this) != typeid(ResNet)) return {};
  return {{"conv1", "bn1"}};
}

std::string ResNet::describe() const {
  std::string text = fmt::format("depth={}, classes={}, channels={}", options_.depth,
                                 options_.classes, options_.channels);
  if (options_.groups != 1) text += fmt::format(", groups={}", options_.groups);
  if (options_.width_per_group != 64)
    text += fmt::format(", width_per_group={}", options_.width_per_group);
  return text;
}

std::vector<std::string> resnet_names() {
  std::vector<std::string> names;
  for (const NamedNetwork& network : named_networks()) names.push_back(network.name);
  return names;
}

std::shared_ptr<ResNet> resnet(const std::string& name, ResNet::Options options) {
  for (const NamedNetwork& network : named_networks()) {
    if (network.name != name) continue;
    options.depth = network.depth;
    if (network.groups != 1) options.groups = network.groups;
    if (network.width_per_group != 64) options.width_per_group = network.width_per_group;
    return std::make_shared<ResNet>(options);
  }
  fail<ValueError>("resnet: expected one of {}, got '{}'", fmt::join(resnet_names(), ", "), name);
}

}  // namespace tutti::nn
