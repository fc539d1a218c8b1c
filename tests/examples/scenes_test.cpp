// Training a segmentation network on small scenes: the same scores for any number of ranks, resumed
// runs, what counts of pixels without a class and of logits that are not finite, the weights of
// backbones and heads, the report, what is found before the first step, and flags that are refused.
#include "distributed/messages.h"
#include "kernels/compare.h"
#include "report/dry_run.h"
#include "resumed_run.h"
#include "segmentation/png_file.h"
#include "train/data_check.h"
#include "train/network.h"
#include "train/training_step.h"
#include "trainer_program.h"

#include <tutti/core/create.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/models/segmentation.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

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
    options_.segmentation = {.crop = 16, .min_scale = 0.8, .max_scale = 1.2, .width = 2};
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

TEST_F(Segmentation, TheReportShowsCounts) {
  options_.out = folder_.path() + "/run";
  options_.epochs = 1;
  const TrainResult result = test::train_on(1, options_, data_).front();
  const auto report = test::report_json(test::content(options_.out + "/report.html"));
  EXPECT_EQ(report.at("score"), "mIoU");
  std::int64_t pixels = 0;
  for (const std::int64_t count : report.at("test").at("samples")) pixels += count;
  EXPECT_EQ(pixels, 16 * 21 + 17 * 22 + 18 * 23 + 19 * 21 + 20 * 22);  // without the border
  EXPECT_NE(test::content(options_.out + "/metrics.jsonl").find("\"test_miou\":"),
            std::string::npos);
}

TEST(PixelMetrics, LeaveOutPixelsWithoutAClass) {
  LossSums sums(Device::cpu());
  const Tensor labels = tensor({0, 255, 1, 255, 1, 255}, {1, 2, 3}, {int64}),
               answers = tensor({0, 0, 1, 1, 0, 1}, {1, 2, 3}, {int64});
  sums.add(scalar(6), answers, labels);
  sums.count(6);
  const LossAndAccuracy means = sums.take(ProcessGroup());
  EXPECT_DOUBLE_EQ(means.loss, 2);
  EXPECT_DOUBLE_EQ(means.accuracy, 2.0 / 3);
  sums.add(scalar(0), answers, full({1, 2, 3}, 255, {int64}));
  sums.count(6);
  EXPECT_EQ(sums.take(ProcessGroup()).loss, 0) << "no label at all";
  const Tensor class_255 = tensor({255, 3}, {int64});  // one of a thousand
  sums.add(scalar(1), class_255, class_255);
  sums.count(2);
  EXPECT_EQ(sums.take(ProcessGroup()).accuracy, 1);
}

// The gradient is that of PyTorch's mean over the pixels with a class, here over two ranks with
// different numbers of them, and in micro batches.
TEST_F(Segmentation, AStepLearnsFromTheMeanOverPixelsWithAClass) {
  options_.precision = float64;
  Generator random(5);
  const Tensor images = rand({4, 3, 16, 16}, {.dtype = float64}, random),
               masks = randint(3, {4, 16, 16}, {int64}, random);
  masks.select(0, 0).fill_(255);
  masks.slice(1, 0, 5).fill_(255);
  const auto make = [&] {
    manual_seed(3);
    auto net = make_network(options_, data_);
    net->to(float64);
    net->eval();  // batch normalisation does not depend on the parts
    return net;
  };
  const auto reference = make();
  nn::cross_entropy((*reference)(images), masks, {.ignore_index = 255}).backward();
  for (const std::int64_t accumulate : {1, 2})
    distributed::run_ranks(2, [&](const ProcessGroup& group) {
      TrainOptions options = options_;
      options.accumulate = accumulate;
      const auto net = make();
      DataParallel data_parallel(net->named_parameters(), net->named_buffers(), group);
      Optimization optimization(net->parameters(), options, {1, 1, 1});
      LossSums sums(Device::cpu());
      const std::int64_t first = 2 * group.rank();
      TrainingStep({options, *net, data_parallel, optimization, sums})
          .run({.images = images.slice(0, first, first + 2),
                .labels = masks.slice(0, first, first + 2),
                .global_size = 4});
      const auto expected = reference->parameters(), got = net->parameters();
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LT(test::relative_error(to_vector(got[i].grad()), to_vector(expected[i].grad())),
                  1e-10)
            << i << " " << accumulate;
    });
}

TEST_F(Segmentation, LogitsThatAreNotFiniteAreNoClassInATest) {
  const auto net = make_network(options_, data_);
  for (const auto& [name, parameter] : net->named_parameters())
    if (name == "head.bias") parameter.detach().fill_(NAN);
  data::DataLoader loader(data_.test, test_loader_options(options_, data_, {}, Device::cpu()));
  const TestResult result =
      evaluate(*net, loader, 3, ProcessGroup(), Device::cpu(), Task::segmentation);
  EXPECT_TRUE(std::isnan(result.means.loss));
  EXPECT_EQ(result.means.accuracy, 0);
  EXPECT_GT(to_vector(result.confusion.select(1, 0))[0], 0);  // the ground was taken for no class
  EXPECT_EQ(sum(result.confusion.slice(1, 1, 4)).item<double>(), 0);
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

TEST_F(Segmentation, HeadsForOtherClassesAreFreshInEveryNetwork) {
  for (const char* model : {"unet", "fcn_resnet50", "deeplabv3_resnet50"})
    for (const bool auxiliary : {false, true}) {
      if (auxiliary && options_.model == "unet") continue;
      TrainOptions options = options_;
      options.model = model;
      options.segmentation.auxiliary = auxiliary ? 0.5 : 0;
      TrainingData others = data_;
      others.classes = 21;
      others.class_names.clear();
      options.weights = folder_.path() + "/of_21.safetensors";
      const auto from = make_network(options, others), net = make_network(options, data_);
      save_safetensors(options.weights, from->state_dict());
      const StateDict before = net->state_dict();
      std::map<std::string, std::vector<double>> fresh;
      for (const auto& [name, tensor] : before) fresh[name] = to_vector(tensor);
      const std::string line = load_weights(options, data_, *net);
      expect_contains(line, {"for 21 classes", "for 3"});
      std::size_t of_heads = 0;
      const StateDict given = from->state_dict(), now = net->state_dict();
      for (std::size_t i = 0; i < now.size(); ++i) {
        const auto& [name, tensor] = now[i];
        const bool is_head = tensor.shape() != given[i].second.shape();
        EXPECT_EQ(to_vector(tensor), is_head ? fresh[name] : to_vector(given[i].second)) << name;
        if (is_head) ++of_heads;
      }
      EXPECT_EQ(of_heads, auxiliary ? 4u : 2u) << line;
      options.test_only = true;
      expect_contains(message_of<CheckpointError>([&] { load_weights(options, data_, *net); }),
                      {"expected float32 (3"});
    }
}

TEST_F(Segmentation, AnAuxiliaryHeadOfTheFileOrTheNetworkAloneIsSaid) {
  options_.model = "fcn_resnet50";
  TrainOptions with = options_;
  with.segmentation.auxiliary = 0.5;
  options_.weights = with.weights = folder_.path() + "/weights.safetensors";
  save_safetensors(options_.weights, make_network(with, data_)->state_dict());
  const auto plain = make_network(options_, data_), two = make_network(with, data_);
  expect_contains(load_weights(options_, data_, *plain), {"is left out (--auxiliary-loss 0.5"});
  save_safetensors(options_.weights, plain->state_dict());
  expect_contains(load_weights(with, data_, *two), {"that of --auxiliary-loss is fresh"});
  EXPECT_EQ(to_vector(two->state_dict()[0].second), to_vector(plain->state_dict()[0].second));
}

// ---- before the first step

TEST_F(Segmentation, PixelsOfEachClassAreCounted) {
  const std::string text = look_at_scenes(options_, data_, 2);
  std::array<std::int64_t, 256> pixels{};
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < data_.train->size(); ++i)
    for (const double value : to_vector(data_.train->get(i).mask))
      ++pixels[static_cast<std::size_t>(value)], ++all;
  const auto share = [&](std::size_t c) {
    return fmt::format("{} ({:.1f} %)", pixels[c],
                       100 * static_cast<double>(pixels[c]) / static_cast<double>(all));
  };
  EXPECT_EQ(text, "pixels in 8 of 8 training masks: ground " + share(0) + ", disc " + share(1) +
                      ", bar " + share(2) + "; no class (255) " + share(255) + "\n");
  // Masks of 0 and 255, as tools for one foreground write them.
  for (std::int64_t i = 0; i < 8; ++i) {
    const Tensor mask = data_.train->get(i).mask;
    for (std::int64_t p = 0; p < mask.numel(); ++p)
      if (mask.data<std::uint8_t>()[p] > 0) mask.data<std::uint8_t>()[p] = 255;
    write_png(fmt::format("{}/train/masks/{}.png", options_.data, i), mask);
  }
  expect_contains(look_at_scenes(options_, data_, 1),
                  {"disc 0 (0.0 %)", "warning: no pixel of these masks has class 'disc' (1), 'bar'",
                   "of the pixels are 255, which stands for no class, in 8 training masks"});
  for (std::int64_t i = 0; i < data_.test->size(); ++i)
    write_png(fmt::format("{}/val/masks/{}.png", options_.data, i),
              full(data_.test->get(i).mask.shape(), 255, {uint8}));
  expect_contains(look_at_scenes(options_, data_, 1),
                  {"warning: 100.0 % of the pixels are 255", "test masks"});
}

TEST_F(Segmentation, CropsThatAreMostlyPaddingAreSaid) {
  options_.segmentation.crop = 64;
  expect_contains(
      look_at_scenes(options_, data_, 2),
      {"warning: --crop 64 is larger than most pictures, whose shorter sides have 17 to "
       "22 pixels",
       "% of a crop would be padding", "give --crop 16"});
}

TEST_F(Segmentation, FilesThatCannotBeUsedAreFoundBeforeTheFirstStep) {
  const std::string mask = options_.data + "/val/masks/3.png";
  write_png(mask, full({5, 5, 1}, 2, {uint8}));
  expect_contains(message_of<DataError>([&] { look_at_scenes(options_, data_, 2); }),
                  {mask, "expected a mask of 20 x 21 pixels", "--dry-run --check-files lists all"});
  options_.check_files = true;
  EXPECT_EQ(look_at_scenes(options_, data_, 2).find("warning"), std::string::npos);
  const std::string listed = check_files(data_, 2).first;
  expect_contains(listed, {"0 of 8 pictures and masks", "1 of 5 pictures and masks", mask});
  write_png(options_.data + "/val/images/3.png", zeros({40, 9, 3}, {uint8}));
  expect_contains(
      message_of<DataError>([&] { check_smallest_test_picture(options_, data_); }),
      {options_.data + "/val/images/3.png has 40 x 9 pixels, too few for unet", "scale it up"});
}

// Not a test: prints what --dry-run says of the memory. Peaks are those of a whole process.
TEST_F(Segmentation, DISABLED_DryRun) {
  if (std::getenv("TUTTI_LARGE_PICTURE"))
    write_png(options_.data + "/val/images/4.png", zeros({600, 1000, 3}, {uint8}));
  std::printf("%s", describe_run(options_, data_, 1).c_str());
}

TEST_F(Segmentation, ADryRunCountsTheTestOfTheLargestPicture) {
  const auto dry_run = [](const std::string& environment) {
    return test::output_of(environment + fs::read_symlink("/proc/self/exe").string() +
                           " --gtest_also_run_disabled_tests"
                           " --gtest_filter=Segmentation.DISABLED_DryRun")
        .output;
  };
  const auto together = [](const std::string& text) {
    const std::size_t at = text.find("together");
    return at == std::string::npos ? NAN : std::stod(text.substr(at + 8));
  };
  const std::string small = dry_run(""), large = dry_run("TUTTI_LARGE_PICTURE=1 ");
  expect_contains(small, {"or the test of 21 x 22 pixels"});
  expect_contains(large, {"or the test of 600 x 1000 pixels"});
  // Logits, their loss and the largest maps of the network: some float32 of each pixel.
  EXPECT_GT(together(large), together(small) + 600 * 1000 * 4 * 6 / 1e6) << large;
  EXPECT_LT(together(large), together(small) + 600 * 1000 * 4 * 60 / 1e6) << large;
}

TEST_F(Segmentation, ClassesInAnotherOrderAreNamedByLine) {
  std::ofstream(options_.data + "/val/classes.txt") << "ground\nbar\ndisc\n";
  expect_contains(message_of<DataError>([&] { load_training_data(options_); }),
                  {"have different classes; class 1 (line 2 of classes.txt) is 'disc' and 'bar'"});
}

// Names of files may be any bytes but NUL and '/'.
TEST_F(Segmentation, NamesThatAreNotUtf8ReachEveryFile) {
  const std::string data = folder_.path() + "/sc\xE8nes", out = folder_.path() + "/r\xFFn";
  fs::rename(options_.data, data);
  std::vector<const char*> words{"train_segmentation",
                                 "--data",
                                 data.c_str(),
                                 "--out",
                                 out.c_str(),
                                 "--model",
                                 "unet",
                                 "--width",
                                 "2",
                                 "--crop",
                                 "16",
                                 "--epochs",
                                 "1",
                                 "--batch-size",
                                 "4",
                                 "--keep-best"};
  TrainOptions options = default_options(Task::segmentation);
  parse(static_cast<int>(words.size()), words.data(), options);
  const TrainResult result = test::train_on(1, options, load_training_data(options)).front();
  EXPECT_EQ(nlohmann::json::parse(test::content(out + "/config.json")).at("data"),
            folder_.path() + "/sc\uFFFDnes");
  for (const char* file : {"model", "best", "checkpoint"})
    EXPECT_NO_THROW(load_safetensors(out + "/" + file + ".safetensors")) << file;
  words = {"train_segmentation", "--resume", "--out", out.c_str()};
  const auto flags = nlohmann::json::parse(flags_of_old_run(4, words.data(), options.task, 1));
  EXPECT_EQ(flags.at("--crop"), "16");
  EXPECT_FALSE(flags.contains("--data"));  // JSON has no such name: to be given again
  options.resume = true;
  options.epochs = 2;
  EXPECT_EQ(test::train_on(1, options, load_training_data(options)).front().rows.back().epoch, 2);
}

TEST_F(Segmentation, AFolderMayBeCalledFolder) {
  for (const char* name : {"folder", "synthetic", "mnist"}) {
    const std::string data = folder_.path() + "/" + name + "/.";  // as a shell may complete it
    std::vector<const char*> words{"train_segmentation", "--data", data.c_str()};
    TrainOptions options = default_options(Task::segmentation);
    parse(3, words.data(), options);
    EXPECT_EQ(options.model, "fcn_resnet50") << name;
    EXPECT_EQ(options.image_size, 0) << name;
    EXPECT_EQ(options.out, std::string("runs/") + name + "-fcn_resnet50");
  }
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
  expect_contains(refusal({"--data", "x", "--check-files"}), {"--check-files needs --dry-run"});
  expect_contains(refusal({"--data", "x", "--mask-orientation", "x"}), {"expected by-size, "});
  expect_contains(refusal({"--data", "x", "--model", "unet", "--auxiliary-loss", "0.5"}),
                  {"--auxiliary-loss needs a network with a backbone"});
  expect_contains(refusal({"--data", "x", "--min-scale", "3"}), {"must not be above --max-scale"});
  expect_contains(refusal({"--data", "x", "--mixup", "1"}), {"unknown argument --mixup"});
  expect_contains(refusal({"--data", "x", "--sync-bn-scope", "2", "--no-sync-bn"}),
                  {"has no effect with --no-sync-bn"});
}

}  // namespace
}  // namespace tutti
