// Runs that go on with more epochs or another learning rate, and the files that they keep. That a
// resume with the same options ends with the same bits is tested in trainer_test.cpp.
#include "distributed/equal_bits.h"
#include "distributed/messages.h"
#include "resumed_run.h"
#include "small_run.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "trainer_program.h"

#include <tutti/nn/models/model_card.h>

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace tutti {
namespace {

using namespace examples;
using test::even_data;
using test::expect_contains;
using test::expect_equal_bits;
using test::expect_equal_rows;
using test::run_trainer;
using test::Screen;
using test::small_options;
using test::train_on;

namespace fs = std::filesystem;

class Continued : public ::testing::Test {
 protected:
  // An epoch has 3 steps, each of which gives a row.
  TrainResult run(const TrainOptions& options) {
    Screen screen;
    const auto results = train_on(2, options, even_data(), screen.file());
    said_ = screen.text();
    expect_equal_bits(results[0].state, results[1].state);
    return results.front();
  }
  // A run that gets a signal in its first step and stops after it.
  void run_one_step(const TrainOptions& options) {
    distributed::run_ranks(2, [&](const ProcessGroup& group) {
      const StopRequest stop{SIGTERM};
      EXPECT_TRUE(train(options, even_data(), group, nullptr, &stop).is_stopped);
    });
  }
  std::string refusal(const TrainOptions& options) {
    return test::message_of<ErrorOnAllRanks>([&] { run(options); });
  }
  std::set<std::string> kept_files(const TrainOptions& options) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(options.out))
      if (const std::string name = entry.path().filename(); name.starts_with("checkpoint-"))
        names.insert(name);
    return names;
  }
  TrainOptions options_in(const std::string& name) const {
    TrainOptions options = small_options();
    options.out = folder_ / name;
    return options;
  }
  // Makes the run, and returns the options that go on with it.
  TrainOptions resume_of_finished_run() {
    TrainOptions options = options_in("run");
    run(options);
    options.resume = true;
    return options;
  }

  const test::TemporaryFolder folder_{"continued"};
  std::string said_;
};

// ---- more epochs, other rates

TEST_F(Continued, AFinishedRunGoesOnWithMoreEpochs) {
  TrainOptions options = options_in("run");
  const TrainResult first = run(options);
  TrainOptions straight = small_options();
  straight.epochs = 4;
  const std::vector<Metrics> rates = run(straight).rows;
  options.resume = true;
  options.epochs = 4;
  const TrainResult second = run(options);
  expect_contains(said_, {"going on after step 6 of 12\n", "epochs 2 -> 4\n"});
  ASSERT_EQ(second.rows.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    if (i < 6) expect_equal_rows(second.rows[i], first.rows[i]);
    else EXPECT_EQ(second.rows[i].learning_rate, rates[i].learning_rate) << "step " << i + 1;
  }
  EXPECT_NE(first.rows[5].learning_rate, rates[5].learning_rate);
  Metadata metadata;
  expect_equal_bits(load_safetensors(options.out + "/model.safetensors", &metadata), second.state);
  EXPECT_EQ(metadata.at("epoch"), "4");
  EXPECT_EQ(metadata.at("step"), "12");
}

TEST_F(Continued, AStopInTheAddedEpochsDoesNotChangeABit) {
  const auto run_twice = [&](const std::string& name, bool stops) {
    TrainOptions options = options_in(name);
    run(options);
    options.resume = true;
    options.epochs = 4;
    options.optimizer.lr = 0.02;
    if (stops) run_one_step(options);
    const TrainResult result = run(options);
    // What the last resume did not change is not said again.
    EXPECT_EQ(said_.find("->") == std::string::npos, stops) << said_;
    return result;
  };
  const TrainResult whole = run_twice("whole", false), parts = run_twice("parts", true);
  test::expect_equal_results(parts, whole);
}

TEST_F(Continued, AnotherLearningRateCountsFromTheNextStepOn) {
  TrainOptions options = options_in("run");
  run_one_step(options);
  TrainOptions straight = small_options();
  straight.optimizer.lr = 0.0125;
  const std::vector<Metrics> rates = run(straight).rows;
  options.resume = true;
  options.optimizer.lr = 0.0125;
  const TrainResult result = run(options);
  expect_contains(said_, {"lr 0.05 -> 0.0125\n"});
  for (std::size_t i = 1; i < 6; ++i)
    EXPECT_EQ(result.rows[i].learning_rate, rates[i].learning_rate) << "step " << i + 1;
  EXPECT_EQ(result.rows[0].learning_rate, 4 * rates[0].learning_rate);
}

TEST_F(Continued, ARunThatEndedInAnEpochGoesOnInIt) {
  TrainOptions options = options_in("run");
  options.max_steps = 4;
  const TrainResult first = run(options);
  EXPECT_TRUE(first.rows.back().test_accuracy.has_value());
  options.resume = true;
  options.epochs = 3;
  options.max_steps = 8;
  const TrainResult second = run(options);
  expect_contains(said_, {"going on after step 4 of 8\n", "epochs 2 -> 3\n", "max_steps 4 -> 8\n"});
  std::vector<std::int64_t> tested;
  for (const Metrics& row : second.rows)
    if (row.test_accuracy) tested.push_back(row.step);
  EXPECT_EQ(tested, (std::vector<std::int64_t>{3, 4, 6, 8}));
  expect_equal_rows(second.rows[3], first.rows[3]);
  expect_equal_bits(run(options).state, second.state);  // its checkpoint is accepted, too
}

TEST_F(Continued, AShorterRunThanTheStepsMadeIsRefused) {
  TrainOptions options = resume_of_finished_run();
  options.epochs = 1;
  expect_contains(refusal(options), {"it has made 6 steps of 3 in an epoch", "would end after 3",
                                     "--epochs", checkpoint_path(options)});
  options.epochs = 2;
  options.max_steps = 6;  // the length that it has had
  run(options);
  expect_contains(said_, {"max_steps 0 -> 6"});
  EXPECT_EQ(said_.find("->"), said_.rfind("->")) << said_;
}

// Without a test after its last step a run would have no result.
TEST_F(Continued, ARunCannotEndInTheEpochAndStepOfItsCheckpoint) {
  TrainOptions options = options_in("run");
  options.checkpoint_every = 2;
  run_one_step(options);
  options.resume = true;
  options.max_steps = 1;
  expect_contains(refusal(options), {"it has made 1 steps", "would end after 1"});
  options.max_steps = 2;
  EXPECT_EQ(run(options).rows.size(), 2u);
}

TEST_F(Continued, OtherDataAreRefusedAlsoWithMoreEpochs) {
  TrainOptions options = resume_of_finished_run();
  options.epochs = 3;
  const TrainingData more = make_synthetic({.train = 40, .test = 13, .channels = 2, .size = 8});
  test::expect_error<ErrorOnAllRanks>(
      [&] { train_on(2, options, more); },
      {"a run of 3 steps in an epoch, this one has 4: other data?"});
}

TEST_F(Continued, OtherImagesInMemoryAndAnotherNormalisationAreRefused) {
  TrainOptions options = options_in("run");
  const auto run_on = [&](int ranks, const TrainingData& data) {
    distributed::run_ranks(
        ranks, [&](const ProcessGroup& group) { train(options, data, group, nullptr); });
  };
  run_on(2, even_data());
  options.resume = true;
  options.epochs = 3;
  const auto refusal = [&](const TrainingData& data) {
    return test::message_of<ErrorOnAllRanks>([&] { run_on(2, data); });
  };
  TrainingData other =
      make_synthetic({.train = 30, .test = 13, .channels = 2, .size = 8, .seed = 9});
  expect_contains(refusal(other), {"of a run with train_fingerprint = "});
  other = even_data();
  other.mean[1] += 0.1f;
  expect_contains(refusal(other), {"of a run with mean = [0.5,0.5], this one has [0.5,0.6"});
  run_on(2, even_data());
  options.epochs = 4;
  run_on(1, even_data());  // the whole data are the same
}

// ---- kept files

TEST_F(Continued, ATestThatIsNotFiniteIsNeverTheBest) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<Metrics> rows{{.epoch = 1, .step = 1, .test_loss = infinity, .test_accuracy = 0.9}};
  EXPECT_EQ(best_row(rows), nullptr);
  rows.push_back({.epoch = 2, .step = 2, .test_loss = infinity, .test_accuracy = 0.8});
  const TrainOptions options = options_in("best");
  fs::create_directories(options.out);
  keep_best(options, rows, {}, {});
  EXPECT_FALSE(fs::exists(best_path(options)));
  rows.push_back({.epoch = 3, .step = 3, .test_loss = 2.0, .test_accuracy = 0.1});
  EXPECT_EQ(best_row(rows)->step, 3);
  keep_best(options, rows, {}, {});
  EXPECT_TRUE(fs::exists(best_path(options)));
  rows.push_back({.epoch = 4, .step = 4, .test_loss = infinity, .test_accuracy = 1.0});
  EXPECT_EQ(best_row(rows)->step, 3);
}

TEST(EpochMeans, CountEachStepOfTheLastEpochOnce) {
  const Metrics means = epoch_means(
      {{.epoch = 1, .step = 4, .train_loss = 9},
       {.epoch = 2, .step = 7, .train_loss = 2, .train_accuracy = 0.4, .images_per_second = 100},
       {.epoch = 2,
        .step = 8,
        .train_loss = 4,
        .train_accuracy = 0.8,
        .images_per_second = 50,
        .data_waiting = 1,
        .test_accuracy = 0.6}});
  EXPECT_DOUBLE_EQ(means.train_loss, 2.5);
  EXPECT_DOUBLE_EQ(means.train_accuracy, 0.5);
  EXPECT_DOUBLE_EQ(means.images_per_second, 80);  // 4 steps in 3 / 100 + 1 / 50 of a time
  EXPECT_DOUBLE_EQ(means.data_waiting, 0.4);
  EXPECT_EQ(means.step, 8);
  EXPECT_EQ(means.test_accuracy, 0.6);
}

TEST_F(Continued, BestWeightsAreThoseOfTheBestEpoch) {
  TrainOptions options = options_in("run");
  options.epochs = 6;
  options.optimizer.lr = 0.2;
  options.keep_best = true;
  options.keep_last = 6;
  const TrainResult result = run(options);
  const Metrics best = *best_row(result.rows);
  Metadata metadata;
  const StateDict weights = load_safetensors(best_path(options), &metadata);
  EXPECT_EQ(metadata.at("epoch"), std::to_string(best.epoch));
  EXPECT_EQ(metadata.at("step"), std::to_string(best.step));
  EXPECT_EQ(metadata.at("test_accuracy"), fmt::format("{}", *best.test_accuracy));
  EXPECT_EQ(nn::ModelCard::from_metadata(metadata).model, "resnet20");
  // The checkpoint of that epoch has the same weights.
  StateDict of_epoch;
  const std::string kept =
      fmt::format("{}/checkpoint-epoch-{:04}.safetensors", options.out, best.epoch);
  for (const auto& [name, tensor] : load_safetensors(kept))
    if (name.starts_with("model.")) of_epoch.emplace_back(name.substr(6), tensor);
  std::map<std::string, Tensor> expected(of_epoch.begin(), of_epoch.end());
  ASSERT_EQ(weights.size(), expected.size());
  for (const auto& [name, tensor] : weights)
    EXPECT_TRUE(to_vector(tensor) == to_vector(expected.at(name))) << name;
}

TEST_F(Continued, BestWeightsAreReplacedByBetterOnesOnly) {
  const TrainOptions options = options_in("best");
  fs::create_directories(options.out);
  std::vector<Metrics> rows;
  const auto add = [&](std::int64_t step, double accuracy) {
    rows.push_back({.epoch = step, .step = step, .test_accuracy = accuracy});
    keep_best(options, rows, {}, {{"step", std::to_string(step)}});
    Metadata metadata;
    load_safetensors(best_path(options), &metadata);
    return metadata.at("step");
  };
  EXPECT_EQ(add(1, 0.5), "1");
  EXPECT_EQ(add(2, 0.4), "1");
  EXPECT_EQ(add(3, 0.5), "1");
  EXPECT_EQ(add(4, 0.6), "4");
  EXPECT_EQ(add(5, 0.7), "5");
}

TEST_F(Continued, TheLastCheckpointsAreKeptAndNoOthers) {
  TrainOptions options = options_in("run");
  options.epochs = 4;
  options.keep_last = 2;
  fs::create_directories(options.out);
  std::ofstream(options.out + "/checkpoint-epoch-mine.safetensors") << "mine";
  const TrainResult whole = run(options);
  EXPECT_EQ(kept_files(options), (std::set<std::string>{"checkpoint-epoch-0003.safetensors",
                                                        "checkpoint-epoch-0004.safetensors",
                                                        "checkpoint-epoch-mine.safetensors"}));
  // A run goes on from a kept checkpoint that is put in the place of the last one.
  fs::copy_file(options.out + "/checkpoint-epoch-0003.safetensors", checkpoint_path(options),
                fs::copy_options::overwrite_existing);
  options.resume = true;
  options.keep_last = 1;
  expect_equal_bits(run(options).state, whole.state);
  expect_contains(said_, {"going on after step 9 of 12"});
  EXPECT_EQ(kept_files(options), (std::set<std::string>{"checkpoint-epoch-0004.safetensors",
                                                        "checkpoint-epoch-mine.safetensors"}));
}

TEST_F(Continued, OtherCheckpointsThanThoseOfEpochsAreNotKept) {
  TrainOptions options = options_in("run");
  options.checkpoint_every = 1;
  options.keep_last = 5;
  run_one_step(options);
  EXPECT_TRUE(kept_files(options).empty());
  options.resume = true;
  run(options);
  EXPECT_EQ(kept_files(options), (std::set<std::string>{"checkpoint-epoch-0001.safetensors",
                                                        "checkpoint-epoch-0002.safetensors"}));
}

// ---- the program

TEST_F(Continued, TheProgramKeepsStopsAndGoesOn) {
  const std::string run = folder_ / "run",
                    arguments =
                        "--dataset synthetic --batch-size 1024 --threads 1 --freeze "
                        "'conv1.*,bn1.*,layer*' --lr 1e-30 --keep-best "
                        "--keep-last 1 --out " +
                        run;
  test::Outcome outcome = run_trainer(arguments + " --epochs 2", 1);
  EXPECT_EQ(outcome.code, 0);
  for (const char* file : {"best", "model", "checkpoint", "checkpoint-epoch-0002"})
    EXPECT_TRUE(fs::exists(run + "/" + file + ".safetensors")) << file;
  outcome = run_trainer(arguments + " --epochs 3 --resume", 1);
  EXPECT_EQ(outcome.code, 0);
  expect_contains(outcome.output, {"epochs 2 -> 3"});

  EXPECT_EQ(run_trainer("--dataset synthetic --batch-size 1024 --threads 1 --max-steps 1 "
                        "--overwrite --out " +
                            run,
                        1)
                .code,
            0);
  EXPECT_TRUE(kept_files(options_in("run")).empty());
  EXPECT_FALSE(fs::exists(run + "/best.safetensors"));
}

}  // namespace
}  // namespace tutti
