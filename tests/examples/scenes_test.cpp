// Training a segmentation network on small scenes: the same scores for any number of ranks, resumed
// runs, the backbone's weights and rate, the report, and flags that are refused.
#include "distributed/messages.h"
#include "resumed_run.h"
#include "segmentation/png_file.h"
#include "train/network.h"
#include "train/training_step.h"

#include <tutti/core/create.h>
#include <tutti/nn/resnet.h>
#include <tutti/nn/segmentation.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

using namespace examples;
using test::expect_contains;
using test::message_of;

namespace fs = std::filesystem;

// A folder of scenes with a disc (class 1) or a bar (class 2) on the ground (class 0), and a border
// without a class. No two sizes are the same.
class Segmentation : public ::testing::Test {
 protected:
  Segmentation() {
    options_.data = folder_.path() + "/scenes";
    options_.model = "unet";
    options_.segmentation = {
        .crop = 16, .min_scale = 0.8, .max_scale = 1.2, .rotation = 10, .color = 0.2, .width = 2};
    options_.epochs = 2;
    options_.batch_size = 4;
    options_.threads = 1;
    options_.out = "";
    for (const auto& [part, count] : {std::pair{"/train", 8}, std::pair{"/val", 5}})
      write_part(options_.data + part, count);
    data_ = load_training_data(options_);
  }

  static void write_part(const std::string& root, std::int64_t count) {
    for (const char* part : {"/images", "/masks"}) fs::create_directories(root + part);
    std::ofstream(root + "/classes.txt") << "ground\ndisc\nbar\n";
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t height = 17 + n, width = 21 + n % 3;
      const Tensor image = empty({height, width, 3}, {.dtype = uint8}),
                   mask = zeros({height, width, 1}, {.dtype = uint8});
      for (std::int64_t i = 0; i < height * width; ++i) {
        const std::int64_t y = i / width - 8, x = i % width - 10;
        const bool inside = n % 2 == 0 ? x * x + y * y < 25 : x > -3 && x < 2;
        const auto label = static_cast<std::uint8_t>(inside ? 1 + n % 2 : 0);
        mask.data<std::uint8_t>()[i] = i < width ? 255 : label;
        for (int c = 0; c < 3; ++c)
          image.data<std::uint8_t>()[3 * i + c] =
              static_cast<std::uint8_t>(40 + 90 * label + (i * 7 + c * 31) % 40);
      }
      write_png(fmt::format("{}/images/{}.png", root, n), image);
      write_png(fmt::format("{}/masks/{}.png", root, n), mask);
    }
  }

  const test::TemporaryFolder folder_{"segmentation"};
  TrainOptions options_ = default_options(Task::segmentation);
  TrainingData data_;
};

TEST_F(Segmentation, SeveralRanksTrainAndTestAsOneDoes) {
  options_.out = folder_.path() + "/run";
  const TrainResult one = test::train_on(1, options_, data_).front();
  options_.out = "";
  const TrainResult two = test::train_on(2, options_, data_).front();
  ASSERT_EQ(one.rows.size(), two.rows.size());
  for (std::size_t i = 0; i < one.rows.size(); ++i) {
    EXPECT_NEAR(one.rows[i].train_loss, two.rows[i].train_loss, 1e-4) << i;
    EXPECT_NEAR(one.rows[i].test_accuracy.value_or(2), two.rows[i].test_accuracy.value_or(3), 0.01);
  }
  // The same weights have the same score to the last bit, whoever sees which picture.
  options_.test_only = true;
  options_.out = folder_.path() + "/run";
  for (const int ranks : {1, 2, 7})
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      EXPECT_EQ(test_weights(options_, data_, group, nullptr).accuracy, one.test_accuracy) << ranks;
    });
}

TEST_F(Segmentation, AResumedRunHasTheSameBits) {
  options_.sync_bn = false;
  test::expect_resumes_to_the_bit(options_, data_, 8);
}

TEST_F(Segmentation, TheReportShowsPicturesAndCounts) {
  options_.out = folder_.path() + "/run";
  options_.epochs = 1;
  const TrainResult result = test::train_on(1, options_, data_).front();
  const auto report = test::report_json(test::content(options_.out + "/report.html"));
  EXPECT_EQ(report.at("score"), "mIoU");
  ASSERT_EQ(report.at("segmented").size(), 5u);
  for (const auto& scene : report.at("segmented"))
    for (const char* part : {"image", "truth", "predicted"}) {
      EXPECT_EQ(scene.at(part).at("height"), 17 + scene.at("index").get<int>()) << part;
      EXPECT_EQ(scene.at(part).at("width"), scene.at("image").at("width")) << part;
    }
  std::int64_t pixels = 0;
  for (const std::int64_t count : report.at("test").at("samples")) pixels += count;
  EXPECT_EQ(pixels, 16 * 21 + 17 * 22 + 18 * 23 + 19 * 21 + 20 * 22);  // without the border
  EXPECT_NE(test::content(options_.out + "/metrics.jsonl").find("\"test_miou\":"),
            std::string::npos);
}

TEST_F(Segmentation, ABackboneTakesWeightsOfAResNetAndHasARateOfItsOwn) {
  options_.model = "fcn_resnet50";
  options_.segmentation.auxiliary = 0.5;
  options_.optimizer.backbone_lr = 0.1;
  const auto net = make_network(options_, data_);
  const auto resnet = nn::resnet("resnet50", {.classes = 7});
  options_.weights = folder_.path() + "/resnet.safetensors";
  save_safetensors(options_.weights, resnet->state_dict());
  expect_contains(load_weights(options_, data_, *net), {"for the backbone"});
  const auto& backbone = dynamic_cast<nn::SegmentationNetwork&>(*net).backbone;
  EXPECT_EQ(to_vector(backbone.conv1->weight), to_vector(resnet->conv1->weight));

  const std::size_t of_backbone = trained_in_backbone(*net);
  EXPECT_EQ(of_backbone, resnet->parameters().size() - 2);  // without the head
  const Optimization optimization(trained_parameters(*net), options_, {1, 1, 1}, of_backbone);
  const Metadata rates = optimization.optimizer_state().metadata;
  EXPECT_EQ(std::stod(rates.at("group.0.lr")), 0.01);
  EXPECT_NEAR(std::stod(rates.at("group.1.lr")), 0.001, 1e-15);

  // A step of this network, on two ranks that see one value for each channel of no layer.
  options_.weights.clear();
  options_.max_steps = 1;
  const TrainResult result = test::train_on(2, options_, data_).front();
  EXPECT_GT(result.rows.back().train_loss, 0);
  EXPECT_GE(result.rows.back().train_accuracy, 0);
}

TEST_F(Segmentation, WrongFlagsAreRefused) {
  const auto refusal = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "train_segmentation");
    TrainOptions options = default_options(Task::segmentation);
    return message_of<UsageError>(
        [&] { parse(static_cast<int>(words.size()), words.data(), options); });
  };
  expect_contains(refusal({}), {"--data DIR is missing"});
  expect_contains(refusal({"--data", "x", "--model", "unett"}), {"did you mean 'unet'"});
  expect_contains(refusal({"--data", "x", "--width", "8"}), {"--width needs --model unet"});
  expect_contains(refusal({"--data", "x", "--model", "unet", "--auxiliary-loss", "0.5"}),
                  {"--auxiliary-loss needs a network with a backbone"});
  expect_contains(refusal({"--data", "x", "--min-scale", "3"}), {"must not be above --max-scale"});
  expect_contains(refusal({"--data", "x", "--batch-norm", "global"}), {"expected sync or local"});
  expect_contains(refusal({"--data", "x", "--mixup", "1"}), {"unknown argument --mixup"});
  expect_contains(refusal({"--data", "x", "--sync-bn-scope", "2", "--batch-norm", "local"}),
                  {"has no effect with --batch-norm local"});
}

}  // namespace
}  // namespace tutti
