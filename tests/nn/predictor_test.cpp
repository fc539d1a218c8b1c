// Tests of nn::Predictor on small networks. threads_test.cpp calls it from many threads.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/random.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/models/predictor.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/models/segmentation.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tutti {
namespace {

using test::expect_contains;
using test::expect_error;
using test::message_of;

nn::ModelCard card_of(std::int64_t classes = 4) {
  nn::ModelCard card{.model = "resnet20",
                     .classes = classes,
                     .channels = 3,
                     .mean = {0.5, 0.4, 0.3},
                     .std = {0.2, 0.3, 0.4},
                     .input_size = 12};
  for (std::int64_t i = 0; i < classes; ++i) card.class_names.push_back(fmt::format("class {}", i));
  return card;
}

// A network whose batch normalisation has seen data, so that its statistics matter.
std::shared_ptr<nn::ResNet> trained_network(std::int64_t classes = 4) {
  const auto net =
      std::make_shared<nn::ResNet>(nn::ResNet::Options{.depth = 20, .classes = classes});
  const NoGrad no_grad;
  for (int i = 0; i < 5; ++i) (*net)(randn({8, 3, 12, 12}) * 2 + 1);
  net->eval();
  return net;
}

Tensor picture(std::int64_t side = 12) { return (rand({side, side, 3}) * 255).to(uint8); }

Tensor preprocess(const Tensor& picture, const nn::ModelCard& card) {
  EXPECT_EQ(card.input_size, 12);
  return (picture.to(float32) / 255 - 0.4).permute({2, 0, 1});
}

// A weights file that is removed in the end.
class WeightsFile {
 public:
  WeightsFile(const StateDict& state, const Metadata& metadata)
      : path(fmt::format("predictor_{}.safetensors", getpid())) {
    save_safetensors(path, state, metadata);
  }
  ~WeightsFile() { std::remove(path.c_str()); }
  const std::string path;
};

void expect_near(const Tensor& a, const Tensor& b, double tolerance) {
  const auto x = to_vector(a), y = to_vector(b);
  ASSERT_EQ(x.size(), y.size());
  double scale = 0;
  for (const double v : y) scale = std::max(scale, std::abs(v));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], tolerance * scale) << i;
}

TEST(Predictor, AFileGivesTheLogitsOfTheNetworkThatWroteIt) {
  const auto net = trained_network();
  const WeightsFile file(net->state_dict(), card_of().to_metadata());
  const Generator::State random = default_generator().state();
  const nn::Predictor predictor(file.path);
  EXPECT_EQ(default_generator().state(), random) << "loading must not draw the caller's numbers";
  EXPECT_EQ(predictor.card(), card_of());
  const Tensor x = randn({5, 3, 12, 12});
  const NoGrad no_grad;
  const Tensor expected = (*net)(x);
  expect_near(predictor.logits(x), expected, 1e-4);  // batch normalisation is folded
  expect_near(predictor.probabilities(x), softmax(expected, 1), 1e-4);
  EXPECT_FALSE(predictor.logits(x).requires_grad());
  EXPECT_EQ(predictor.logits(zeros({0, 3, 12, 12})).shape(), (Shape{0, 4}));
}

nn::ModelCard pixel_card(const std::string& model) {
  nn::ModelCard card = card_of(3);
  card.model = model;
  return card;
}

TEST(Predictor, AFileOfASegmentationNetworkGivesTheLogitsOfEachPixel) {
  const NoGrad no_grad;
  const Tensor x = randn({1, 3, 33, 40});
  for (const char* name : {"fcn_resnet50", "deeplabv3_resnet50"}) {
    const auto net = nn::segmentation_network(name, {.classes = 3, .auxiliary = true});
    net->eval();
    const WeightsFile file(net->state_dict(), pixel_card(name).to_metadata());
    const nn::Predictor predictor(file.path);
    EXPECT_TRUE(predictor.folded().left.empty()) << predictor.folded().to_string();
    EXPECT_EQ(predictor.logits(x).shape(), (Shape{1, 3, 33, 40}));
    expect_near(predictor.logits(x), (*net)(x), 1e-3);
  }
  nn::ModelCard card = pixel_card("fcn_resnet50");
  card.classes = 4, card.class_names.clear();
  const auto net = nn::segmentation_network("fcn_resnet50", {.classes = 3});
  const WeightsFile file(net->state_dict(), card.to_metadata());
  expect_contains(message_of<CheckpointError>([&] { const nn::Predictor predictor(file.path); }),
                  {"'classes' is 4", "'classifier.4.weight' has shape (3, 512, 1, 1)"});
}

TEST(Predictor, AFileOfANetworkOfOnesOwnNeedsTheFunctionThatMakesIt) {
  const auto make = [](const nn::ModelCard& card, const StateDict& weights) {
    const auto net = std::make_shared<nn::Sequential>();
    if (card.model != "my net") return std::shared_ptr<nn::Sequential>();
    const std::int64_t kernel = weights.empty() ? 3 : weights[0].second.size(2);
    net->append<nn::Conv2d>({.in = card.channels, .out = card.classes, .kernel = kernel});
    net->append<nn::BatchNorm2d>({.channels = card.classes});
    return net;
  };
  const NoGrad no_grad;
  const nn::ModelCard card = pixel_card("my net");
  const auto net = make(card, {});
  net->eval();
  const WeightsFile file(net->state_dict(), card.to_metadata());
  const Generator::State random = default_generator().state();
  const nn::Predictor predictor(file.path, {.preprocess = preprocess, .make_network = make});
  EXPECT_EQ(default_generator().state(), random);
  const Tensor x = randn({2, 3, 12, 12});
  expect_near(predictor.logits(x), (*net)(x), 1e-5);
  EXPECT_EQ(predictor.folded().to_string(), "1 of 1 BatchNorm layers are folded");
  expect_contains(message_of<ShapeError>([&] { predictor.classify(picture()); }),
                  {"of each pixel", "logits()"});
  expect_contains(message_of<CheckpointError>([&] { const nn::Predictor without(file.path); }),
                  {file.path, "fcn_resnet50", "'my net'", "make_network"});
  // The library's own networks need no such function, and may have one.
  const WeightsFile known(trained_network()->state_dict(), card_of().to_metadata());
  EXPECT_EQ(nn::Predictor(known.path, {.make_network = make}).folded().folded.size(), 19u);
}

TEST(Predictor, ACheckpointGivesItsWeightsOrTheirAverages) {
  const auto net = trained_network(), average = trained_network();
  StateDict state{{"random", zeros({1, 2}, {int64})}, {"optimizer.0.momentum", ones({3})}};
  for (const auto& [name, tensor] : net->state_dict()) state.emplace_back("model." + name, tensor);
  const Tensor x = randn({2, 3, 12, 12});
  const NoGrad no_grad;
  {
    const WeightsFile file(state, card_of().to_metadata());
    expect_near(nn::Predictor(file.path).logits(x), (*net)(x), 1e-4);
  }
  for (const auto& [name, tensor] : average->state_dict())
    state.emplace_back("ema.average." + name, tensor);
  const WeightsFile file(state, card_of().to_metadata());
  expect_near(nn::Predictor(file.path).logits(x), (*average)(x), 1e-4);
}

TEST(Predictor, ComputesInBfloat16OnRequest) {
  const auto net = trained_network();
  const WeightsFile file(net->state_dict(), card_of().to_metadata());
  const nn::Predictor predictor(file.path, {.bf16 = true});
  const Tensor x = randn({5, 3, 12, 12}), logits = predictor.logits(x);
  EXPECT_EQ(logits.dtype(), float32);
  const NoGrad no_grad;
  const Tensor exact = (*net)(x);
  expect_near(logits, exact, 0.1);
  EXPECT_NE(to_vector(logits), to_vector(exact));
}

TEST(Predictor, ClassifiesAsALoopOverTheLogitsDoes) {
  const nn::Predictor predictor(trained_network(), card_of(), {.preprocess = preprocess});
  const std::vector<Tensor> pictures{picture(), picture(), picture()};
  const auto batch = predictor.classify(pictures, 3);
  ASSERT_EQ(batch.size(), 3u);
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const auto p = to_vector(predictor.probabilities(stack({preprocess(pictures[i], card_of())})));
    const auto alone = predictor.classify(pictures[i], 3);
    ASSERT_EQ(batch[i].size(), 3u);
    std::vector<double> rest = p;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto label = static_cast<std::size_t>(batch[i][k].label);
      EXPECT_NEAR(batch[i][k].probability, p[label], 1e-5);
      EXPECT_NEAR(batch[i][k].probability, *std::ranges::max_element(rest), 1e-5);
      EXPECT_EQ(batch[i][k].name, fmt::format("class {}", label));
      EXPECT_NEAR(alone[k].probability, batch[i][k].probability, 1e-5);
      rest[label] = -1;
    }
  }
  EXPECT_EQ(predictor.classify(picture(), 100).size(), 4u);  // all classes, and no more
  EXPECT_TRUE(predictor.classify(std::vector<Tensor>{}).empty());
}

TEST(Predictor, EqualProbabilitiesAreListedByLabelAndNamelessClassesByNumber) {
  const auto net = std::make_shared<nn::Sequential>();
  net->append<nn::AdaptiveAvgPool2d>();
  struct Zero : nn::Layer {
    Tensor forward(const Tensor& x) override { return zeros({x.size(0), 4}); }
  };
  net->append<Zero>();
  nn::ModelCard card = card_of();
  card.class_names.clear();
  const nn::Predictor predictor(net, card, {.preprocess = preprocess});
  const auto all = predictor.classify(picture(), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].label, static_cast<std::int64_t>(i));
    EXPECT_EQ(all[i].name, std::to_string(i));
    EXPECT_NEAR(all[i].probability, 0.25, 1e-6);
  }
}

TEST(Predictor, AFileThatDoesNotFitIsNamedWithTheReason) {
  const auto net = trained_network();
  const auto error = [](const StateDict& state, const Metadata& metadata) {
    const WeightsFile file(state, metadata);
    const std::string message =
        message_of<CheckpointError>([&] { const nn::Predictor predictor(file.path); });
    expect_contains(message, {file.path});
    return message;
  };
  const StateDict state = net->state_dict();
  expect_contains(error(state, {}), {"'model'", "import_torchvision.py"});
  const auto changed = [](const std::string& key, const std::string& value) {
    nn::ModelCard card = card_of();
    card.class_names.clear();
    Metadata metadata = card.to_metadata();
    metadata[key] = value;
    return metadata;
  };
  expect_contains(error(state, changed("model", "vgg16")), {"resnet20, ", "'vgg16'"});
  expect_contains(error(state, changed("classes", "1000000000000")),
                  {"'classes' is 1000000000000", "fc.weight", "(4, 64)"});
  Metadata grey = changed("channels", "1");
  grey["mean"] = grey["std"] = "[0.5]";
  expect_contains(error(state, grey), {"'channels' is 1", "conv1.weight", "(16, 3, 3, 3)"});
  expect_contains(error({}, card_of().to_metadata()), {"'conv1.weight'", "none"});
  expect_contains(error(state, changed("model", "resnet32")), {"layer1.3.conv1.weight", "missing"});
  expect_error<CheckpointError>([] { const nn::Predictor predictor("no/such.safetensors"); },
                                {"no/such.safetensors"});
}

TEST(Predictor, WrongCallsSayWhatWasExpected) {
  const nn::Predictor plain(trained_network(), card_of());
  expect_error<ShapeError>(
      [&] {
        plain.logits(randn({2, 1, 12, 12}));
      },
      {"(N, 3, H, W)", "(2, 1, 12, 12)"});
  expect_error<ShapeError>([&] { plain.logits(randn({3, 12, 12})); }, {"(3, 12, 12)"});
  expect_error<ValueError>([&] { plain.classify(picture()); }, {"preprocess"});

  const nn::Predictor predictor(trained_network(), card_of(), {.preprocess = preprocess});
  expect_error<ValueError>([&] { predictor.classify(picture(), 0); }, {"got 0"});
  expect_error<ShapeError>([&] { predictor.classify(picture(13)); },
                           {"(3, 12, 12)", "(3, 13, 13)"});
  const nn::Predictor nan(trained_network(), card_of(),
                          {.preprocess = [](const Tensor&, const nn::ModelCard&) {
                            return full({3, 12, 12}, NAN);
                          }});
  expect_error<Error>([&] { nan.classify(picture()); }, {"NaN"});

  const nn::Predictor other(trained_network(7), card_of());
  expect_error<ShapeError>([&] { other.logits(randn({2, 3, 12, 12})); }, {"(2, 4)", "(2, 7)"});
  expect_error<ValueError>([&] { nn::Predictor(nullptr, card_of()); }, {"null"});
  expect_error<ValueError>([&] { nn::Predictor(trained_network(), nn::ModelCard()); }, {"'model'"});
}

}  // namespace
}  // namespace tutti
