// Tests of what threads may do at a time (docs/embed.md), which also run under ThreadSanitizer:
// reading one model from many threads, training models of one's own, and both side by side.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/loss.h>
#include <tutti/nn/models/predictor.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace tutti {
namespace {

using Numbers = std::vector<double>;

void run_threads(int count, const std::function<void(int)>& fn) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(fn, i);
}

// Blocks with every kind of shortcut, and layers that differ between training and evaluation.
std::shared_ptr<nn::Sequential> make_network() {
  const auto net = std::make_shared<nn::Sequential>();
  net->append<nn::Conv2d>({.in = 3, .out = 8, .kernel = 3, .padding = 1});
  net->append<nn::BatchNorm2d>({.channels = 8});
  net->append<nn::MaxPool2d>({.kernel = 2});
  net->append<nn::BasicBlock>({.in = 8, .out = 8});
  net->append<nn::BasicBlock>({.in = 8, .out = 16, .stride = 2, .project = false});
  net->append<nn::Bottleneck>({.in = 16, .width = 4, .stride = 2});
  net->append<nn::AdaptiveAvgPool2d>();
  net->append<nn::Flatten>();
  net->append<nn::Dropout>({.p = 0.5});
  net->append<nn::Linear>({.in = 16, .out = 5});
  return net;
}

nn::ModelCard card() {
  return {.model = "blocks",
          .classes = 5,
          .channels = 3,
          .mean = {0, 0, 0},
          .std = {1, 1, 1},
          .input_size = 12};
}

Tensor to_planes(const Tensor& picture, const nn::ModelCard&) {
  return (picture.to(float32) / 255).permute({2, 0, 1});
}

std::vector<Numbers> probabilities_of(const nn::Predictor& predictor,
                                      const std::vector<Tensor>& pictures) {
  std::vector<Numbers> all;
  for (const Tensor& picture : pictures) {
    Numbers numbers(5);
    for (const nn::Prediction& each : predictor.classify(picture))
      numbers[static_cast<std::size_t>(each.label)] = each.probability;
    all.push_back(numbers);
  }
  return all;
}

std::vector<Tensor> make_pictures(int count) {
  std::vector<Tensor> pictures;
  for (int i = 0; i < count; ++i) pictures.push_back((rand({12, 12, 3}) * 255).to(uint8));
  return pictures;
}

// Trains a network of this thread's own for a few steps and returns its weights.
std::vector<Numbers> train_alone(std::uint64_t seed) {
  manual_seed(seed);
  const auto net = make_network();
  optim::SGD sgd(net->parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < 3; ++step) {
    const Tensor labels = tensor({0, 1, 2, 3}, {.dtype = int64});
    sgd.zero_grad();
    nn::cross_entropy((*net)(randn({4, 3, 12, 12})), labels).backward();
    sgd.step();
  }
  std::vector<Numbers> weights;
  for (const Tensor& parameter : net->parameters()) weights.push_back(to_vector(parameter));
  return weights;
}

TEST(Threads, OnePredictorAnswersManyThreadsAtATime) {
  for (const bool bf16 : {false, true}) {
    const nn::Predictor predictor(make_network(), card(), {.preprocess = to_planes, .bf16 = bf16});
    const std::vector<Tensor> pictures = make_pictures(6);
    std::vector<Numbers> alone;
    std::thread([&] { alone = probabilities_of(predictor, pictures); }).join();
    run_threads(4, [&](int) { EXPECT_EQ(probabilities_of(predictor, pictures), alone); });
  }
}

// Without a Predictor: evaluation reads the module, and gradients may be recorded, each thread's in
// a graph of its own, as long as backward() stays with inputs of the thread.
TEST(Threads, AModuleInEvaluationMayRunInManyThreadsAtATime) {
  const auto net = make_network();
  net->eval();
  for (const Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
  const Tensor x = randn({2, 3, 12, 12});
  const Numbers expected = [&] {
    Tensor input = x.clone();
    input.requires_grad_();
    sum(square((*net)(input))).backward();
    return to_vector(input.grad());
  }();
  run_threads(4, [&](int) {
    Tensor input = x.clone();
    input.requires_grad_();
    sum(square((*net)(input))).backward();
    const Numbers own = to_vector(input.grad());
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], expected[i], 1e-4);
  });
}

TEST(Threads, ModelsOfTheirOwnTrainSideBySideAsTheyDoAlone) {
  std::vector<std::vector<Numbers>> alone(3), together(3);
  for (std::size_t i = 0; i < 3; ++i) std::thread([&] { alone[i] = train_alone(i + 1); }).join();
  run_threads(
      3, [&](int i) { together[static_cast<std::size_t>(i)] = train_alone(1 + std::uint64_t(i)); });
  EXPECT_EQ(together, alone);
  EXPECT_NE(alone[0], alone[1]);
}

TEST(Threads, OneModelTrainsWhileAnotherAnswers) {
  const nn::Predictor predictor(make_network(), card(), {.preprocess = to_planes});
  const std::vector<Tensor> pictures = make_pictures(4);
  std::vector<Numbers> answers;
  std::vector<Numbers> weights;
  std::thread([&] { answers = probabilities_of(predictor, pictures); }).join();
  std::thread([&] { weights = train_alone(7); }).join();
  run_threads(4, [&](int i) {
    if (i == 0) EXPECT_EQ(train_alone(7), weights);
    else EXPECT_EQ(probabilities_of(predictor, pictures), answers);
  });
}

// A handle may be copied, read and released by many threads; views share the storage.
TEST(Threads, ATensorMayBeReadByManyThreads) {
  const Tensor shared = randn({64, 64});
  const Numbers expected = to_vector(shared.transpose(0, 1) + 1);
  run_threads(4, [&](int) {
    for (int i = 0; i < 10; ++i) {
      const Tensor copy = shared, view = copy.transpose(0, 1);
      EXPECT_EQ(to_vector(view + 1), expected);
    }
  });
}

// The library must not change how many threads OpenMP gives to the host program's own loops.
TEST(Threads, TheHostsSettingOfOpenMPStays) {
  const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  if (!set || !get) GTEST_SKIP() << "this process has no OpenMP";
  std::thread([&] {
    set(3);
    EXPECT_EQ(num_threads(), 1);  // the host's setting is not the library's
    nn::Conv2d conv({.in = 3, .out = 8, .kernel = 3});
    conv(randn({2, 3, 8, 8}));
    EXPECT_EQ(get(), 3);
  }).join();
}

}  // namespace
}  // namespace tutti
