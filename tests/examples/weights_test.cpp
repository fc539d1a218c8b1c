// Runs that begin with the weights of a file, layers that do not train, and tests of weights.
#include "distributed/equal_bits.h"
#include "distributed/messages.h"
#include "small_run.h"
#include "train/checkpoint.h"
#include "train/network.h"
#include "trainer_program.h"

#include <tutti/core/create.h>
#include <tutti/nn/models/resnet.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace tutti {
namespace {

using namespace examples;
using test::even_data;
using test::expect_contains;
using test::expect_equal_bits;
using test::expect_error;
using test::message_of;
using test::run_trainer;
using test::Screen;
using test::small_options;
using test::train_on;

namespace fs = std::filesystem;

std::map<std::string, std::vector<double>> vectors_of(const StateDict& state) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, tensor] : state) values[name] = to_vector(tensor);
  return values;
}

class Weights : public ::testing::Test {
 protected:
  // Saves the weights of a short run, whose statistics are no longer those of a fresh network.
  Weights() {
    TrainOptions options = small_options();
    options.epochs = 1;
    options.out = first_;
    first_result_ = train_on(2, options).front();
  }
  std::string file() const { return first_ + "/model.safetensors"; }
  TrainOptions from_file() const {
    TrainOptions options = small_options();
    options.weights = file();
    return options;
  }

  const test::TemporaryFolder folder_{"weights"};
  const std::string first_ = folder_ / "first";
  TrainResult first_result_;
};

// Only the head can change in such a run.
const std::vector<std::string> all_but_the_head{"conv1.*", "bn1.*", "layer*"};

TEST_F(Weights, EveryRankBeginsWithParametersAndBuffersOfTheFile) {
  TrainOptions options = from_file();
  options.freeze = all_but_the_head;
  options.optimizer.lr = 1e-30;
  for (const TrainResult& result : train_on(2, options))
    for (const auto& [name, value] : vectors_of(load_safetensors(file())))
      EXPECT_TRUE(vectors_of(result.state).at(name) == value) << name;
}

TEST_F(Weights, AHeadForOtherClassesStaysFresh) {
  TrainingData data = even_data();
  data.classes = 12;
  const auto net = nn::resnet("resnet20", {.classes = 12, .channels = 2});
  StateDict fresh;
  for (const auto& [name, tensor] : net->state_dict()) fresh.emplace_back(name, tensor.clone());
  const auto before = vectors_of(fresh), given = vectors_of(load_safetensors(file()));
  const std::string line = load_weights(from_file(), data, *net);
  expect_contains(line, {file(), "head 'fc' for 10 classes", "a fresh one for 12"});
  std::size_t of_file = 0;
  for (const auto& [name, value] : vectors_of(net->state_dict())) {
    const bool is_head = name.starts_with("fc.");
    EXPECT_TRUE(value == (is_head ? before : given).at(name)) << name;
    if (!is_head) ++of_file;
  }
  EXPECT_EQ(of_file, given.size() - 2);
  EXPECT_EQ(
      load_weights(from_file(), even_data(), *nn::resnet("resnet20", {.channels = 2})).find("head"),
      std::string::npos);
  Screen screen;
  train_on(2, from_file(), data, screen.file());
  expect_contains(screen.text(), {line});
}

TEST_F(Weights, AnEntryThatDoesNotFitIsNamedOnEveryRank) {
  Metadata metadata;
  const StateDict whole = load_safetensors(file(), &metadata);
  TrainOptions options = from_file();
  options.weights = folder_ / "odd.safetensors";
  const auto expect_refusal = [&](const std::string& name, const Tensor& value,
                                  const std::string& what) {
    StateDict odd;
    for (const auto& entry : whole)
      if (entry.first != name) odd.push_back(entry);
    if (value.defined()) odd.emplace_back(name, value);
    save_safetensors(options.weights, odd, metadata);
    int refusals = 0;
    std::mutex lock;
    distributed::run_ranks(2, [&](const ProcessGroup& group) {
      const std::string text =
          message_of<ErrorOnAllRanks>([&] { train(options, even_data(), group, nullptr); });
      const std::lock_guard guard(lock);
      expect_contains(text, {options.weights, "'" + name + "' " + what});
      ++refusals;
    });
    EXPECT_EQ(refusals, 2);
    EXPECT_THROW(check_start(options, even_data(), false), CheckpointError);
    EXPECT_NO_THROW(check_start(options, even_data(), true));  // the checkpoint is read instead
  };
  expect_refusal("layer2.0.conv1.weight", {}, "is missing");
  expect_refusal("layer2.0.bn1.running_var", {}, "is missing");
  expect_refusal("layer9.weight", zeros({2}), "is unknown");
  expect_refusal("conv1.weight", zeros({16, 3, 3, 3}), "is float32 (16, 3, 3, 3), expected");
  expect_refusal("bn1.weight", zeros({16}, {.dtype = int64}), "is int64 (16,), expected float32");
  // A head differs in its number of classes only.
  expect_refusal("fc.weight", zeros({10, 63}), "is float32 (10, 63), expected");
  expect_refusal("fc.weight", zeros({12, 64}), "is float32 (12, 64), expected");
  expect_refusal("fc.bias", {}, "is missing");
  expect_refusal("bn1.bias", full({16}, NAN), "has numbers that are not finite");
}

TEST_F(Weights, AFileThatCannotBeReadIsNamedOnEveryRank) {
  TrainOptions options = small_options();
  options.weights = folder_ / "nothing.safetensors";
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    expect_error<ErrorOnAllRanks>([&] { train(options, even_data(), group, nullptr); },
                                  {options.weights});
  });
}

TEST_F(Weights, TheCheckpointOfAResumedRunWins) {
  TrainOptions options = from_file();
  options.out = folder_ / "second";
  const TrainResult result = train_on(2, options).front();
  fs::remove(file());
  options.resume = true;
  Screen screen;
  expect_equal_bits(train_on(2, options, even_data(), screen.file()).front().state, result.state);
  expect_contains(screen.text(), {"goes on from its checkpoint: " + file() + " is not read"});
}

TEST_F(Weights, TheLineSaysHowTheModelCardDiffers) {
  TrainingData data = even_data();
  data.mean[0] += 0.1f;
  const auto net = nn::resnet("resnet20", {.channels = 2});
  expect_contains(load_weights(from_file(), data, *net), {"model card differs in mean"});
  EXPECT_EQ(load_weights(from_file(), even_data(), *net).find("differs"), std::string::npos);
}

// ---- frozen layers

TEST_F(Weights, FrozenLayersKeepParametersAndStatistics) {
  TrainOptions options = from_file();
  options.freeze = {"conv1.*", "bn1.*", "layer1.*"};
  options.out = folder_ / "frozen";
  const auto results = train_on(2, options);
  expect_equal_bits(results[0].state, results[1].state);
  const auto before = vectors_of(load_safetensors(file()));
  std::size_t frozen = 0;
  for (const auto& [name, value] : vectors_of(results[0].state)) {
    const bool stays = name.starts_with("conv1") || name.starts_with("bn1") ||
                       name.starts_with("layer1");
    EXPECT_EQ(value == before.at(name), stays) << name;
    frozen += stays ? 1 : 0;
  }
  EXPECT_EQ(frozen, 7 * 6u);  // 7 convolutions, and their batch normalisation with 5 tensors
}

TEST_F(Weights, FrozenParametersAreNeitherReducedNorInTheOptimizer) {
  TrainOptions options = small_options();
  options.out = folder_ / "frozen";
  const auto bytes_of_run = [&] {
    std::size_t bytes = 0;
    distributed::run_ranks(2, [&](const ProcessGroup& group) {
      train(options, even_data(), group, nullptr);
      if (group.rank() == 0) bytes = static_cast<std::size_t>(group.traffic().bytes);
    });
    return bytes;
  };
  options.freeze = all_but_the_head;
  const std::size_t of_head = bytes_of_run();
  std::size_t states = 0;
  for (const auto& [name, tensor] : load_safetensors(checkpoint_path(options)))
    if (name.starts_with("optimizer.") && tensor.rank() > 0 && tensor.numel() >= 10 &&
        name != "optimizer.steps")
      ++states;
  EXPECT_EQ(states, 2u);  // the momentum of weight and bias of the head
  options.out.clear();
  options.freeze.clear();
  const std::size_t of_all = bytes_of_run();
  // A run of 6 steps sends the gradients of about 270,000 parameters in each.
  EXPECT_GT(of_all - of_head, 6 * 4 * 250'000u);
}

TEST_F(Weights, ARunWithFrozenLayersResumesToTheBit) {
  TrainOptions options = small_options();
  options.freeze = {"layer1.*", "layer2.0.bn1.*"};
  options.checkpoint_every = 4;
  options.out = folder_ / "whole";
  const TrainResult whole = train_on(2, options).front();
  options.out = folder_ / "parts";
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    const StopRequest stop{SIGTERM};
    EXPECT_TRUE(train(options, even_data(), group, nullptr, &stop).is_stopped);
  });
  options.resume = true;
  expect_equal_bits(train_on(2, options).front().state, whole.state);
  options.freeze = {"layer1.*"};
  expect_error<ErrorOnAllRanks>([&] { train_on(2, options); }, {"freeze = 'layer1.*,"});
}

// The projection of a block and its last layer otherwise share their collectives.
TEST_F(Weights, OneOfTwoLayersThatShareACollectiveMayBeFrozen) {
  TrainOptions options = small_options();
  options.model = "resnet18";
  options.max_steps = 2;
  for (const char* pattern : {"layer2.0.downsample.*", "layer2.0.bn2.*"}) {
    options.freeze = {pattern};
    const auto results = train_on(2, options);
    expect_equal_bits(results[0].state, results[1].state);
  }
}

TEST(FrozenLayers, APatternWithoutAMatchIsRefusedByName) {
  const auto net = nn::resnet("resnet20", {.channels = 2});
  const auto refusal = [&](const std::vector<std::string>& patterns) {
    TrainOptions options = small_options();
    options.freeze = patterns;
    return message_of<UsageError>([&] { freeze_layers(options, *net); });
  };
  expect_contains(refusal({"layr1.*"}), {"--freeze: expected a pattern such as", "conv1.weight",
                                         "'layr1.*' matches none"});
  expect_contains(refusal({"fc"}), {"'fc' matches none"});
  expect_contains(refusal({""}), {"'' matches none"});
  expect_contains(refusal({"conv*", "*"}), {"'conv*,*'", "no parameter to train"});
}

// ---- tests of weights

TEST_F(Weights, ATestGivesTheFiguresOfTheRunThatWroteThem) {
  TrainOptions options = small_options();
  options.out = first_;
  options.test_only = true;
  const auto test_on = [&](int ranks) {
    std::vector<LossAndAccuracy> results(static_cast<std::size_t>(ranks));
    Screen screen;
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      results[static_cast<std::size_t>(group.rank())] =
          test_weights(options, even_data(), group, screen.file());
    });
    for (const LossAndAccuracy& result : results) {
      EXPECT_EQ(result.accuracy, first_result_.test_accuracy);
      EXPECT_NEAR(result.loss, first_result_.rows.back().test_loss.value(), 1e-5);
    }
    return screen.text();
  };
  const std::string figures = fmt::format("test accuracy {:.4f}", first_result_.test_accuracy);
  expect_contains(test_on(2), {"weights from " + file(), figures, "on 13 images"});
  test_on(1);
  fs::remove(file());
  expect_contains(test_on(2), {"weights from " + checkpoint_path(options), figures});
  options.weights = folder_ / "copy.safetensors";
  fs::rename(checkpoint_path(options), options.weights);
  options.out = folder_ / "nowhere";
  expect_contains(test_on(2), {"weights from " + options.weights, figures});
  EXPECT_FALSE(fs::exists(options.out));
}

TEST_F(Weights, ATestNeedsTheWholeNetwork) {
  TrainOptions options = from_file();
  options.test_only = true;
  TrainingData data = even_data();
  data.classes = 12;
  expect_error<ErrorOnAllRanks>(
      [&] { test_weights(options, data, ProcessGroup(), nullptr); },
      {"tensor 'fc.weight' is float32 (10, 64), expected float32 (12, 64)"});
  options.weights.clear();
  options.out = folder_ / "nowhere";
  expect_error<ErrorOnAllRanks>([&] { test_weights(options, data, ProcessGroup(), nullptr); },
                                {options.out, "--weights"});
}

// ---- the program

class WeightsOfProgram : public ::testing::Test {
 protected:
  void expect_refusal(const std::string& arguments, const std::vector<std::string>& parts) const {
    const test::Outcome outcome = run_trainer(small_ + arguments, 2);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
    expect_contains(outcome.output, parts);
  }

  const test::TemporaryFolder folder_{"weights_of_program"};
  const std::string run_ = folder_ / "run";
  const std::string small_ = "--dataset synthetic --batch-size 16 --threads 1 --out " + run_ + " ";
};

TEST_F(WeightsOfProgram, ATestLeavesTheFolderAsItIs) {
  ASSERT_EQ(run_trainer(small_ + "--max-steps 2", 1).code, 0);
  const auto files = [&] {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::directory_iterator(run_))
      if (entry.path().filename() != ".lock")
        contents[entry.path().filename()] = test::content(entry.path());
    return contents;
  };
  const auto before = files();
  const test::Outcome outcome = run_trainer(small_ + "--test-only --ranks 2", 1);
  EXPECT_EQ(outcome.code, 0);
  expect_contains(outcome.output, {"weights from " + run_ + "/model.safetensors", "test accuracy"});
  EXPECT_TRUE(files() == before);

  expect_refusal("--overwrite --weights " + run_ + "/model.safetensors", {"would remove", "--out"});
  EXPECT_TRUE(files() == before);
  expect_refusal("--overwrite --model resnet18 --weights " + run_ + "/../run/model.safetensors",
                 {"would remove"});
  fs::rename(run_ + "/model.safetensors", folder_ / "mine.safetensors");
  expect_refusal("--overwrite --model resnet18 --weights " + (folder_ / "mine.safetensors"),
                 {"mine.safetensors", "'conv1.weight'", "resnet18", "resnet20"});
  EXPECT_TRUE(fs::exists(run_ + "/checkpoint.safetensors"));
  EXPECT_EQ(run_trainer(
                small_ + "--overwrite --max-steps 1 --weights " + (folder_ / "mine.safetensors"), 1)
                .code,
            0);
}

TEST_F(WeightsOfProgram, WrongValuesAreRefusedBeforeAnyRankStarts) {
  expect_refusal("--test-only", {"--test-only finds neither", run_, "--weights"});
  EXPECT_FALSE(fs::exists(run_));
  expect_refusal("--weights " + (folder_ / "none"), {folder_ / "none"});
  expect_refusal("--freeze layer1.*,layr2.*", {"'layr2.*' matches none"});
  expect_refusal("--freeze 'conv*' --freeze 'bn*,layer*' --freeze 'fc*'",
                 {"'conv*,bn*,layer*,fc*' leaves no parameter"});
  for (const char* flag : {"--keep-best", "--keep-last 2", "--resume", "--overwrite", "--epochs 3",
                           "--log-every 5", "--freeze fc.*", "--dry-run", "--lr 0.1"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    expect_refusal("--test-only " + std::string(flag), {name + " has no effect", "--test-only"});
  }
}

TEST_F(WeightsOfProgram, ADryRunReadsWeightsAndCountsWhatTrains) {
  ASSERT_EQ(run_trainer(small_ + "--max-steps 1", 1).code, 0);
  const std::string other = "--out " + (folder_ / "other") +
                            " --dry-run --keep-best --keep-last 2 "
                            "--freeze 'conv1.*,bn1.*,layer*' --weights ";
  const test::Outcome outcome = run_trainer(small_ + other + run_ + "/model.safetensors", 1);
  EXPECT_EQ(outcome.code, 0);
  expect_contains(outcome.output, {"269,722 parameters, 650 of them trained"});
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  expect_refusal(other + (folder_ / "none"), {folder_ / "none"});
}

}  // namespace
}  // namespace tutti
