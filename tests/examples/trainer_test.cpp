// train() as a function: the same mathematics for any number of ranks, the files that a run leaves,
// and resumed runs.
#include "train/trainer.h"
#include "distributed/equal_bits.h"
#include "distributed/messages.h"
#include "resumed_run.h"
#include "small_run.h"
#include "train/checkpoint.h"
#include "train/run_log.h"
#include "trainer_program.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/grad_scaler.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

namespace tutti {
namespace {

using namespace examples;

namespace fs = std::filesystem;
using test::even_data;
using test::expect_equal_bits;
using test::expect_resumes_to_the_bit;
using test::odd_data;
using test::small_options;
using test::train_on;

// Trains on one rank and on several, and compares the loss of every step, the test results, and the
// ranks with each other.
void expect_same_curve(const TrainOptions& options, const TrainingData& data, double tolerance) {
  const TrainResult alone = train_on(1, options, data).front();
  EXPECT_EQ(alone.rows.size(), 6u);
  for (const int ranks : {2, 3}) {
    const auto results = train_on(ranks, options, data);
    double worst = 0;
    for (std::size_t i = 0; i < alone.rows.size(); ++i) {
      const Metrics &one = alone.rows[i], &many = results.front().rows.at(i);
      worst = std::max(worst, std::abs(many.train_loss / one.train_loss - 1));
      ASSERT_LT(worst, tolerance) << ranks << " ranks, step " << one.step;
      EXPECT_EQ(many.learning_rate, one.learning_rate);
      ASSERT_EQ(many.test_loss.has_value(), one.test_loss.has_value());
      if (one.test_loss) {
        EXPECT_NEAR(*many.test_loss / *one.test_loss, 1, tolerance)
            << ranks << " ranks, step " << one.step;
      }
    }
    fmt::print("largest relative difference of {} ranks in {}: {:.1e}\n", ranks,
               to_string(options.precision), worst);
    for (const TrainResult& result : results) {
      expect_equal_bits(result.state, results.front().state);
      EXPECT_EQ(result.test_accuracy, results.front().test_accuracy);
    }
  }
}

TEST(Trainer, AnyNumberOfThreadRanksFollowsTheSameLossCurve) {
  // Several ranks sum in another order than one, which changes values by about 1e-16. Training
  // steps multiply that, where the deepest statistics come from few pixels, to about 1e-13. A wrong
  // scale of one gradient or statistic would show at 1e-2.
  TrainOptions options = small_options();
  options.precision = float64;
  expect_same_curve(options, odd_data(), 1e-10);
}

TEST(Trainer, AnyNumberOfThreadRanksFollowsTheSameLossCurveInFloat32) {
  // In float32 rounding starts at 1e-7, and statistics of few pixels multiply it to 3e-5 within
  // these steps. The rate is low and no batch consists of a single image, because otherwise the
  // difference would grow beyond any tolerance.
  TrainOptions options = small_options();
  options.optimizer.lr = 0.002;
  expect_same_curve(options, even_data(), 1e-3);
}

TEST(Trainer, RepeatsItselfBitForBit) {
  TrainOptions options = small_options();
  options.max_steps = 3;
  expect_equal_bits(train_on(2, options)[1].state, train_on(2, options)[1].state);
  options.seed = 1;
  EXPECT_NE(to_vector(train_on(1, options)[0].state[0].second),
            to_vector(train_on(1, small_options())[0].state[0].second));
}

TEST(Trainer, WithoutSyncBatchNormRanksEndWithTheBuffersOfRank0) {
  TrainOptions options = small_options();
  options.sync_bn = false;
  options.epochs = 1;
  options.max_steps = 2;
  const auto results = train_on(2, options);
  expect_equal_bits(results[0].state, results[1].state);
}

TEST(Trainer, RanksEndWithTheStatisticsOfAllWhereGroupsShareTheirs) {
  TrainOptions options = small_options();
  options.optimizer.ema = 0.5;
  const auto world = train_on(4, options);
  options.sync_bn_scope = "4";
  expect_equal_bits(train_on(4, options)[3].state, world[0].state);
  for (const TrainingData* data : {&even_data(), &odd_data()}) {
    options.sync_bn_scope = "2";
    const auto results = train_on(4, options, *data);
    for (int r = 1; r < 4; ++r)
      expect_equal_bits(results[0].state, results[static_cast<std::size_t>(r)].state);
    EXPECT_NE(results[0].rows[0].train_loss, world[0].rows[0].train_loss);
    EXPECT_EQ(results[0].test_accuracy, results[3].test_accuracy);
  }
  setenv("TUTTI_RANKS_PER_HOST", "2", 1);
  const auto pairs = train_on(4, options);
  options.sync_bn_scope = "host";
  const test::Screen screen;
  expect_equal_bits(train_on(4, options, even_data(), screen.file())[1].state, pairs[0].state);
  unsetenv("TUTTI_RANKS_PER_HOST");
  EXPECT_NE(screen.text().find("SyncBatchNorm (scope host)"), std::string::npos) << screen.text();
}

TEST(Trainer, ExaminingBatchNormChangesNothing) {
  TrainOptions options = small_options();
  const auto plain = train_on(2, options);
  options.bn_report = true;
  const auto examined = train_on(2, options);
  expect_equal_bits(examined[0].state, plain[0].state);
  EXPECT_EQ(examined[0].test_accuracy, plain[0].test_accuracy);
}

// Training never reads running statistics, so weights stay the same.
TEST(Trainer, RecomputedStatisticsReplaceTheRunningAveragesOnly) {
  TrainOptions options = small_options();
  for (const bool sync_bn : {true, false}) {
    options.sync_bn = sync_bn;
    options.recompute_statistics = 0;
    const auto plain = train_on(2, options);
    options.recompute_statistics = 2;
    const auto results = train_on(2, options);
    expect_equal_bits(results[0].state, results[1].state);
    StateDict weights, plain_weights;
    for (std::size_t i = 0; i < results[0].state.size(); ++i) {
      const auto& [name, tensor] = results[0].state[i];
      const Tensor& other = plain[0].state[i].second;
      if (name.find("running_") != std::string::npos) {
        EXPECT_NE(to_vector(tensor), to_vector(other)) << name;
        continue;
      }
      weights.emplace_back(name, tensor);
      plain_weights.emplace_back(name, other);
    }
    expect_equal_bits(weights, plain_weights);
    EXPECT_NE(results[0].rows.back().test_loss, plain[0].rows.back().test_loss);
  }
}

TEST(Trainer, Bfloat16TrainsWithFloat32Weights) {
  TrainOptions options = small_options();
  options.optimizer.lr = 0.02;
  const TrainResult wide = train_on(2, options).front();
  options.precision = bfloat16;
  const TrainResult result = train_on(2, options).front();
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(result.rows[i].train_loss / wide.rows[i].train_loss, 1, 0.05) << i;
  EXPECT_NE(result.rows[0].train_loss, wide.rows[0].train_loss);
  EXPECT_EQ(result.state.front().second.dtype(), float32);
}

TEST(Trainer, LeavesMetricsWeightsAndAReport) {
  const test::TemporaryFolder temporary("run");
  const fs::path folder = temporary.path();
  TrainOptions options = small_options();
  options.out = temporary.path();
  const auto results = train_on(2, options);

  std::ifstream metrics(folder / "metrics.jsonl");
  std::size_t lines = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    const auto row = nlohmann::json::parse(line);
    const Metrics& expected = results.front().rows.at(lines);
    EXPECT_EQ(row.at("epoch"), expected.epoch);
    EXPECT_EQ(row.at("step"), expected.step);
    EXPECT_EQ(row.at("train_loss"), expected.train_loss);
    EXPECT_EQ(row.at("train_accuracy"), expected.train_accuracy);
    EXPECT_GT(row.at("images_per_second"), 0.0);
    EXPECT_GE(row.at("data_waiting"), 0.0);
    EXPECT_LE(row.at("data_waiting"), 1.0);
    EXPECT_EQ(row.contains("test_loss") && row.contains("test_accuracy"), expected.step % 3 == 0);
  }
  EXPECT_EQ(lines, 6u);

  const auto net = nn::resnet("resnet20", {.classes = 10, .channels = 2});
  net->load_state_dict(load_safetensors((folder / "model.safetensors").string()));
  expect_equal_bits(net->state_dict(), results.front().state);

  const auto page = test::report_json(test::content(folder / "report.html"));
  EXPECT_EQ(page.at("last").at("train_loss"), epoch_means(results.front().rows).train_loss);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(folder / "config.json")).at("batch_size"), 10);
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().string().find(".draft-"), std::string::npos) << entry.path();
}

TEST(Trainer, RuinedWeightsDoNotReplaceACheckpoint) {
  const test::TemporaryFolder folder("ruined");
  TrainOptions options = small_options();
  options.out = folder / "run";
  options.epochs = 10;
  options.log_every = 100;
  options.checkpoint_every = 1;
  options.optimizer.lr = 1e15;
  EXPECT_THROW(train_on(2, options), Error);
  const auto checkpoint = load_checkpoint(options);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_TRUE(std::isfinite(to_vector(sum(checkpoint->sums))[0])) << checkpoint->step;
}

// The loss of the last step is that of the weights before it, so that only the weights show it.
TEST(Trainer, WeightsThatTheLastStepHasRuinedEndTheRunAndReplaceNothing) {
  const std::vector<std::string> files{"checkpoint.safetensors", "best.safetensors",
                                       "model.safetensors", "metrics.jsonl"};
  for (const int ranks : {1, 2})
    for (const bool averages : {false, true}) {
      const test::TemporaryFolder folder("ruined");
      TrainOptions options = small_options();
      options.out = folder / "run";
      options.epochs = 1;
      options.batch_size = 30;  // one step in an epoch
      options.schedule.name = "constant";
      options.keep_best = true;
      options.optimizer.ema = averages ? 0.5 : 0;
      train_on(ranks, options);
      std::map<std::string, std::string> before;
      for (const std::string& file : files) before[file] = test::content(folder / ("run/" + file));
      options.resume = true;
      options.epochs = 2;
      options.optimizer.lr = 1e45;
      test::expect_error<Error>([&] { train_on(ranks, options); },
                                {"'model.", "' is not finite at step 2; try a smaller --lr"});
      for (const std::string& file : files)
        EXPECT_EQ(test::content(folder / ("run/" + file)), before[file]) << file;
      options.out = "";
      options.resume = false;
      EXPECT_THROW(train_on(ranks, options), Error);  // without a folder, too
    }
}

// The weights are finite, and the activations of the test are not.
TEST(Trainer, ATestThatIsNotFiniteIsNotTheBest) {
  const test::TemporaryFolder folder("infinite");
  TrainOptions options = small_options();
  options.out = folder / "run";
  options.epochs = 1;
  options.batch_size = 30;
  options.keep_best = true;
  options.schedule.name = "plateau";
  options.optimizer.lr = 1e12;
  options.optimizer.weight_decay = 0;
  const TrainResult result = train_on(2, options).front();
  ASSERT_FALSE(std::isfinite(*result.rows.back().test_loss));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/best.safetensors"));
  const auto row = nlohmann::json::parse(test::content(folder / "run/metrics.jsonl"));
  EXPECT_TRUE(row.at("test_loss").is_null());
  ASSERT_TRUE(load_checkpoint(options).has_value());
  EXPECT_EQ(load_checkpoint(options)->rows.back().test_loss, result.rows.back().test_loss);
}

TEST(Trainer, ResumesFromACheckpointToTheBit) {
  // The run stops in the second epoch. With a checkpoint after every step, it is resumed between
  // two rows of metrics.
  TrainOptions options = small_options();
  expect_resumes_to_the_bit(options, even_data(), 12);
  options.checkpoint_every = 1;
  expect_resumes_to_the_bit(options, even_data(), 17);
}

TEST(Trainer, ResumesToTheBitWithoutSyncBatchNormAndWithoutMomentum) {
  TrainOptions options = small_options();
  options.sync_bn = false;
  options.optimizer.momentum = 0;
  options.optimizer.nesterov = false;
  options.checkpoint_every = 2;
  expect_resumes_to_the_bit(options, odd_data(), 13);
}

TEST(Checkpoint, HoldsTheLossScale) {
  const test::TemporaryFolder folder("checkpoint");
  TrainOptions options = small_options();
  options.out = folder.path();
  Checkpoint made;
  made.step = 3;
  made.steps = 5;
  made.model = {{"w", ones({2})}};
  made.scaler = optim::GradScaler({.init_scale = 4096, .growth_interval = 7}).state_dict();
  made.random = zeros({2, 2}, {.dtype = int64});
  made.sums = zeros({2, 3}, {.dtype = float64});
  save_checkpoint(options, made);
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    const auto found =
        broadcast_checkpoint(group.rank() == 0 ? load_checkpoint(options) : std::nullopt, group);
    expect_equal_bits(found.value().scaler, made.scaler);
  });
}

// Returns the seconds that a line says are left.
int seconds_left(const std::string& line) {
  int hours = 0, minutes = 0, seconds = 0;
  const std::size_t figure = line.find("images/s");
  EXPECT_NE(figure, std::string::npos) << line;
  if (figure == std::string::npos) return -1;
  EXPECT_EQ(std::sscanf(&line[figure], "images/s %d:%d:%d left", &hours, &minutes, &seconds), 3)
      << line;
  return 60 * (60 * hours + minutes) + seconds;
}

TEST(RunLog, TimeLeftCountsTheStepsOfThisProcess) {
  const test::Screen screen;
  const TrainOptions options = small_options();
  RunLog log(options, true, screen.file(), {.epochs = 10, .steps_per_epoch = 100, .steps = 1000},
             900);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  log.add_epoch(
      {.epoch = 10, .step = 901, .images_per_second = 1});  // 99 more steps of at least 100 ms
  EXPECT_GE(seconds_left(screen.text()), 9);
}

TEST(RunLog, TimeLeftDoesNotCountWhatCameBeforeTheFirstStep) {
  const test::Screen screen;
  const TrainOptions options = small_options();
  RunLog log(options, true, screen.file(), {.epochs = 1, .steps_per_epoch = 2000, .steps = 2000},
             900);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));  // a test, and the first step
  log.show_step({.epoch = 1, .step = 901});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  log.add_epoch({.epoch = 1, .step = 1000, .images_per_second = 1});  // 1000 more of 1 ms
  EXPECT_LE(seconds_left(screen.text()), 7) << "11 with what came before";
}

TEST(Placement, RanksDivideTheCoresAmongThem) {
  distributed::run_ranks(2, [](const ProcessGroup& group) {
    EXPECT_GE(threads_of_rank(group), 1);
    EXPECT_LE(2 * threads_of_rank(group), std::max(2, threads_of_rank(ProcessGroup())));
    TrainOptions options = small_options();
    options.threads = group.rank();  // a flag of one rank alone
    options.max_steps = 1;
    EXPECT_EQ(train(options, even_data(), group, nullptr).rows.size(), 1U);
  });
}

}  // namespace
}  // namespace tutti
