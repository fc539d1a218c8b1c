// The training recipe of the trainer: how a step is computed, what optimizers, schedules, averages
// and mixed images do to it, and which options go together.
#include "distributed/messages.h"
#include "kernels/compare.h"
#include "resumed_run.h"
#include "small_run.h"
#include "train/training_data.h"
#include "train/training_step.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tutti {
namespace {

using namespace examples;
using namespace test;

// ---- the computation of a step

constexpr std::int64_t pixels = 4, classes = 3;

// A network without batch normalisation, which knows no other images of its batch.
std::shared_ptr<nn::Sequential> small_net() {
  manual_seed(7);
  auto net = std::make_shared<nn::Sequential>();
  net->append<nn::Conv2d>({.in = 2, .out = 4, .kernel = 3, .padding = 1});
  net->append<nn::ReLU>();
  net->append<nn::Flatten>();
  net->append<nn::Linear>({.in = 4 * pixels * pixels, .out = classes});
  net->to(float64);
  return net;
}

TrainOptions step_options() {
  TrainOptions options = small_options();
  options.precision = float64;
  options.batch_size = 12;
  options.schedule.name = "constant";
  return options;
}

// Returns a rank's part of global batches that are the same for any number of ranks.
data::Batch batch_of(std::int64_t global_size, const ProcessGroup& group, int number) {
  Generator random(static_cast<std::uint64_t>(number));
  const Tensor images = empty({global_size, 2, pixels, pixels}, {.dtype = float64}),
               labels = empty({global_size}, {.dtype = int64});
  for (std::int64_t i = 0; i < images.numel(); ++i) images.data<double>()[i] = random.normal();
  for (std::int64_t i = 0; i < global_size; ++i)
    labels.data<std::int64_t>()[i] = random.below(classes);
  const std::int64_t begin = global_size * group.rank() / group.size(),
                     end = global_size * (group.rank() + 1) / group.size();
  return {.images = images.slice(0, begin, end),
          .labels = labels.slice(0, begin, end),
          .global_size = global_size};
}

struct StepResult {
  std::vector<double> weights;
  LossAndAccuracy sums;
  std::uint64_t collectives = 0;
};

// Makes steps on global batches of these sizes, and returns what rank 0 has then.
StepResult make_steps(int ranks, const TrainOptions& options,
                      const std::vector<std::int64_t>& sizes) {
  StepResult result;
  distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
    const auto net = small_net();
    DataParallel data_parallel(net->named_parameters(), net->named_buffers(), group);
    Optimization optimization(net->parameters(), options,
                              {.epochs = 1, .steps_per_epoch = 10, .steps = 10});
    LossSums sums{Device::cpu()};
    TrainingStep step({.options = options,
                       .net = *net,
                       .data_parallel = data_parallel,
                       .optimization = optimization,
                       .sums = sums});
    int number = 0;
    for (const std::int64_t size : sizes) {
      step.run(batch_of(size, group, number++));
      sums.count(size);
    }
    const auto calls = static_cast<std::uint64_t>(group.traffic().calls);
    const LossAndAccuracy means = sums.take(group);
    if (group.rank() != 0) return;
    result.sums = means;
    result.collectives = calls;
    for (const Tensor& parameter : net->parameters())
      for (const double value : to_vector(parameter)) result.weights.push_back(value);
  });
  return result;
}

TEST(TrainingStep, MicroBatchesMakeTheStepOfTheWholeBatch) {
  // The last batches are uneven: they have fewer images than ranks have micro batches.
  const std::vector<std::int64_t> sizes{12, 11, 5, 1};
  TrainOptions options = step_options();
  options.augmentation.label_smoothing = 0.1;
  const StepResult whole = make_steps(1, options, sizes);
  for (const int ranks : {1, 2, 3}) {
    options.accumulate = 1;
    const StepResult once = make_steps(ranks, options, sizes);
    for (const std::int64_t count : {2, 4, 12}) {
      options.accumulate = count;
      const StepResult parts = make_steps(ranks, options, sizes);
      EXPECT_LT(test::relative_error(parts.weights, whole.weights), 1e-13) << ranks << " " << count;
      EXPECT_NEAR(parts.sums.loss, whole.sums.loss, 1e-12);
      EXPECT_EQ(parts.sums.accuracy, whole.sums.accuracy);
      // Gradients travel once in a step, however many micro batches it has.
      EXPECT_EQ(parts.collectives, once.collectives);
    }
  }
}

TEST(TrainingStep, RanksWithoutImagesTakePartInEveryMicroBatch) {
  TrainOptions options = small_options();
  options.accumulate = 4;
  for (const bool sync_bn : {true, false}) {
    options.sync_bn = sync_bn;
    const auto results = train_on(3, options, odd_data());  // the third batch has one image
    for (const TrainResult& result : results) {
      expect_equal_bits(result.state, results[0].state);
      EXPECT_TRUE(std::isfinite(result.rows.back().train_loss));
    }
  }
}

TEST(TrainingStep, AClippedStepHasTheLengthOfTheRateTimesTheNorm) {
  TrainOptions options = step_options();
  options.optimizer = {.lr = 0.5, .momentum = 0, .nesterov = false, .weight_decay = 0};
  std::vector<double> start;
  for (const Tensor& parameter : small_net()->parameters())
    for (const double value : to_vector(parameter)) start.push_back(value);
  for (const double norm : {1e-3, 1e3}) {  // the second one is above the gradient's
    options.optimizer.clip_norm = norm;
    for (const int ranks : {1, 2}) {
      const std::vector<double> end = make_steps(ranks, options, {12}).weights;
      double squares = 0;
      for (std::size_t i = 0; i < start.size(); ++i) squares += std::pow(end[i] - start[i], 2);
      if (norm < 1) EXPECT_NEAR(std::sqrt(squares) / (0.5 * norm), 1, 1e-4);
      else EXPECT_LT(std::sqrt(squares), 0.5 * 100);
    }
  }
}

TEST(TrainingStep, OfAMixedImageTheClassThatItShowsMostOfCounts) {
  const TrainOptions options = step_options();
  const ProcessGroup alone;
  const auto net = small_net();
  data::Batch batch = batch_of(1, alone, 3);
  const Tensor logits = (*net)(batch.images);
  const std::int64_t answer = argmax(logits.detach(), 1).item<std::int64_t>();
  const auto accuracy = [&](std::int64_t strong, std::int64_t weak) {
    DataParallel data_parallel(net->named_parameters(), net->named_buffers(), alone);
    TrainOptions frozen = options;
    frozen.optimizer.lr = 1e-30;
    Optimization optimization(net->parameters(), frozen, {1, 10, 10});
    LossSums sums{Device::cpu()};
    batch.soft_labels = zeros({1, classes}, {.dtype = float64});
    batch.soft_labels.data<double>()[strong] = 0.7;
    batch.soft_labels.data<double>()[weak] += 0.3;
    batch.labels.fill_(static_cast<double>(weak));
    TrainingStep({frozen, *net, data_parallel, optimization, sums}).run(batch);
    sums.count(1);
    return sums.take(alone).accuracy;
  };
  EXPECT_EQ(accuracy(answer, (answer + 1) % classes), 1);
  EXPECT_EQ(accuracy((answer + 1) % classes, answer), 0);
}

TEST(Recipe, LabelSmoothingReachesTheLoss) {
  // The loss is linear in the smoothing, so that of one half lies in the middle.
  TrainOptions options = small_options();
  options.precision = float64;
  options.max_steps = 1;
  std::vector<double> losses;
  for (const double smoothing : {0.0, 0.5, 1.0}) {
    options.augmentation.label_smoothing = smoothing;
    const Metrics row = train_on(1, options)[0].rows[0];
    losses.push_back(row.train_loss);
    EXPECT_NE(row.train_loss, *row.test_loss);
  }
  EXPECT_NEAR(losses[1], (losses[0] + losses[2]) / 2, 1e-12);
  EXPECT_GT(std::abs(losses[2] - losses[0]), 1e-3);
}

TEST(Recipe, ZeroInitBeginsWithoutTheResidualBranches) {
  TrainOptions options = small_options();
  options.max_steps = 1;
  options.optimizer.lr = 1e-12;
  for (const bool zero_init : {false, true}) {
    options.zero_init = zero_init;
    const TrainResult result = train_on(1, options)[0];
    for (const auto& [name, tensor] : result.state)
      if (name.ends_with(".bn2.weight")) {
        EXPECT_NEAR(to_vector(tensor)[0], zero_init ? 0 : 1, 1e-6) << name;
      }
  }
}

// ---- optimizers and schedules

TEST(Recipe, WithoutNormDecayOnlyConvolutionsAndLinearLayersDecay) {
  for (const std::string& name : optimizer_names()) {
    const auto net = nn::resnet("resnet20", {.classes = 10});
    StateDict before;
    for (const auto& [path, parameter] : net->named_parameters()) {
      parameter.detach().fill_(2);
      parameter.set_grad(zeros(parameter.shape()));
    }
    const auto optimizer = make_optimizer(
        {.name = name, .lr = 0.1, .weight_decay = 0.1, .norm_decay = false}, net->parameters());
    EXPECT_EQ(optimizer->parameters().size(), net->parameters().size());
    optimizer->step();
    for (const auto& [path, parameter] : net->named_parameters()) {
      const bool decays = path.find("conv") != std::string::npos || path == "fc.weight";
      EXPECT_EQ(to_vector(parameter)[0] < 2, decays) << name << " " << path;
    }
  }
  const auto lars =
      make_optimizer({.name = "lars", .norm_decay = false}, nn::resnet("resnet20")->parameters());
  EXPECT_EQ(lars->state_dict().metadata.at("group.0.adapt"), "1");
  EXPECT_EQ(lars->state_dict().metadata.at("group.1.adapt"), "0");
}

TEST(Recipe, EveryOptimizerTrainsWithEverySchedule) {
  TrainOptions options = small_options();
  options.epochs = 1;
  options.optimizer.norm_decay = false;
  options.schedule.milestones = {1};
  std::set<double> losses;
  for (const std::string& name : optimizer_names())
    for (const std::string& schedule : schedule_names()) {
      options.optimizer.name = name;
      options.optimizer.lr = name.starts_with("adam") ? 0.001 : 0.01;
      options.schedule.name = schedule;
      const auto results = train_on(2, options);
      expect_equal_bits(results[0].state, results[1].state);
      losses.insert(results[0].rows.back().train_loss);
    }
  EXPECT_GE(losses.size(), 2 * optimizer_names().size());  // one_cycle and the others begin apart
}

TEST(Recipe, SchedulesHaveTheValuesOfTheirFormulas) {
  const RunLength length{.epochs = 10, .steps_per_epoch = 4, .steps = 40};
  const auto expect_factors = [&](const ScheduleOptions& options,
                                  const std::vector<std::pair<std::int64_t, double>>& expected) {
    const optim::Schedule schedule = make_schedule(options, length);
    for (const auto& [step, factor] : expected)
      EXPECT_NEAR(schedule ? schedule(step) : 1, factor, 1e-12) << options.name << " " << step;
  };
  expect_factors({.name = "constant"}, {{0, 1}, {39, 1}});
  expect_factors({.name = "constant", .warmup = 2}, {{0, 0.01}, {4, 0.505}, {8, 1}, {39, 1}});
  expect_factors({.name = "plateau", .warmup = 2}, {{0, 0.01}, {8, 1}, {39, 1}});
  expect_factors({.name = "steps", .milestones = {3, 6}},
                 {{0, 1}, {11, 1}, {12, 0.1}, {23, 0.1}, {24, 0.01}, {39, 0.01}});
  expect_factors({.name = "steps", .warmup = 2, .milestones = {3, 6}, .gamma = 0.5},
                 {{0, 0.01}, {8, 1}, {11, 1}, {12, 0.5}, {24, 0.25}});
  expect_factors({.name = "poly"}, {{0, 1}, {20, std::pow(0.5, 0.9)}, {40, 0}});
  expect_factors({.name = "cosine"}, {{0, 1}, {10, 0.5 + std::sqrt(0.5) / 2}, {20, 0.5}, {40, 0}});
  expect_factors({.name = "cosine", .warmup = 2}, {{0, 0.01}, {8, 1}, {24, 0.5}, {40, 0}});
  // A run that --max-steps ends within the warm-up.
  EXPECT_NEAR(make_schedule({.name = "cosine", .warmup = 2}, {10, 4, 6})(4), 0.505, 1e-12);
}

TEST(Recipe, APlateauLowersTheRateAfterItsPatience) {
  TrainOptions options = small_options();
  options.optimizer.lr = 0.4;
  options.schedule = {.name = "plateau", .gamma = 0.5, .plateau_patience = 1};
  Optimization optimization({zeros({1}).requires_grad_()}, options, {10, 1, 10});
  std::vector<double> rates;
  for (const double loss : {1.0, 1.0, 1.0, 0.5, 0.6, 0.6}) {
    optimization.end_epoch(loss);
    optimization.advance_schedule();
    rates.push_back(optimization.last_learning_rate());
  }
  EXPECT_EQ(rates, (std::vector<double>{0.4, 0.4, 0.2, 0.2, 0.2, 0.1}));
}

// ---- averaged weights

std::vector<double> values_of(const StateDict& state) {
  std::vector<double> values;
  for (const auto& [name, tensor] : state)
    if (name.find("num_batches") == std::string::npos)
      for (const double value : to_vector(tensor)) values.push_back(value);
  return values;
}

TEST(Recipe, AveragesOfEveryStepAreSavedAndTrainingGoesOnWithoutThem) {
  constexpr double decay = 0.7;
  TrainOptions options = small_options();
  options.precision = float64;
  options.schedule.name = "constant";
  std::vector<std::vector<double>> steps;  // the weights after each step
  for (options.max_steps = 1; options.max_steps <= 6; ++options.max_steps)
    steps.push_back(values_of(train_on(1, options)[0].state));
  options.max_steps = 0;
  const double plain_loss = *train_on(1, options)[0].rows.back().test_loss;
  options.optimizer.ema = decay;
  std::vector<double> expected = steps[0];
  for (std::size_t s = 1; s < steps.size(); ++s)
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = decay * expected[i] + (1 - decay) * steps[s][i];
  const TrainResult averaged = train_on(1, options)[0];
  EXPECT_LT(test::relative_error(values_of(averaged.state), expected), 1e-12);
  EXPECT_NE(*averaged.rows.back().test_loss, plain_loss);
}

TEST(Recipe, AveragesBeginAtTheEndOfTheWarmUp) {
  TrainOptions options = small_options();
  options.schedule = {.name = "constant", .warmup = 1};
  for (const std::int64_t steps : {3, 4}) {  // an epoch has three
    options.max_steps = steps;
    options.optimizer.ema = 0;
    const auto last = values_of(train_on(1, options)[0].state);
    options.optimizer.ema = 0.7;
    EXPECT_EQ(values_of(train_on(1, options)[0].state) == last, steps == 3);
  }
}

TEST(Recipe, AveragesAreTheSameOnAllRanks) {
  TrainOptions options = small_options();
  options.optimizer.ema = 0.9;
  for (const bool sync_bn : {true, false}) {
    options.sync_bn = sync_bn;
    options.recompute_statistics = sync_bn ? 2 : 0;
    const auto results = train_on(3, options);
    for (const TrainResult& result : results) expect_equal_bits(result.state, results[0].state);
  }
}

// ---- mixed images

TEST(Recipe, OnlyTrainingBatchesAreMixed) {
  TrainOptions options = small_options();
  options.augmentation = {.mixup = 0.4, .cutmix = 1};
  const ProcessGroup alone;
  const TrainingData& data = even_data();
  data::DataLoader train(data.train, train_loader_options(options, data, alone, {})),
      statistics(data.train, statistics_loader_options(options, data, alone, {})),
      test(data.test, test_loader_options(options, data, alone, {}));
  EXPECT_FALSE(statistics.next()->soft_labels.defined());
  EXPECT_FALSE(test.next()->soft_labels.defined());
  // CutMix gives labels the weights of whole pixels, and mixup does not.
  int pasted = 0, blended = 0;
  for (int i = 0; i < 30; ++i) {
    const auto batch = train.next();
    if (!batch) continue;
    const std::vector<double> labels = to_vector(batch->soft_labels);
    ASSERT_EQ(labels.size(), 100u);
    bool is_whole = true;
    for (std::size_t row = 0; row < 10; ++row) {
      double sum = 0;
      for (std::size_t c = 0; c < 10; ++c) {
        const double share = labels[10 * row + c];
        sum += share;
        is_whole = is_whole && share * 64 == std::round(share * 64);
      }
      EXPECT_NEAR(sum, 1, 1e-6);
    }
    ++(is_whole ? pasted : blended);
  }
  EXPECT_GE(pasted, 3);
  EXPECT_GE(blended, 3);
}

TEST(Recipe, RecomputedStatisticsAreThoseOfImagesThatAreNotMixed) {
  // With a rate near 0 the weights stay what they are, whether images are mixed or not.
  TrainOptions options = small_options();
  options.optimizer.lr = 1e-30;
  options.epochs = 1;
  const auto running_statistics = [&](std::int64_t recomputed, double mixup) {
    options.recompute_statistics = recomputed;
    options.augmentation.mixup = mixup;
    StateDict statistics;
    const TrainResult result = train_on(1, options)[0];
    for (const auto& [name, tensor] : result.state)
      if (name.find("running_") != std::string::npos) statistics.emplace_back(name, tensor);
    return statistics;
  };
  expect_equal_bits(running_statistics(2, 1), running_statistics(2, 0));
  EXPECT_NE(to_vector(running_statistics(0, 1)[0].second),
            to_vector(running_statistics(0, 0)[0].second));
}

// ---- resumed runs

TEST(Recipe, ResumesToTheBitWithAveragesPlateauAdamWAndMixedImages) {
  TrainOptions options = small_options();
  options.optimizer = {
      .name = "adamw", .lr = 0.003, .norm_decay = false, .clip_norm = 1, .ema = 0.8};
  options.schedule = {.name = "plateau", .warmup = 1, .gamma = 0.5, .plateau_patience = 0};
  options.augmentation = {.label_smoothing = 0.1, .mixup = 0.3, .cutmix = 1};
  options.accumulate = 2;
  options.checkpoint_every = 1;
  expect_resumes_to_the_bit(options, even_data(), 17);
}

TEST(Recipe, ResumesToTheBitWithAveragesOfPlainBatchNormAndSteps) {
  TrainOptions options = small_options();
  options.sync_bn = false;
  options.optimizer.name = "lars";
  options.optimizer.ema = 0.5;
  options.optimizer.norm_decay = false;
  options.schedule = {.name = "steps", .milestones = {1, 2}};
  expect_resumes_to_the_bit(options, odd_data(), 13);
}

// ---- options

TrainOptions parsed(const std::vector<const char*>& flags) {
  std::vector<const char*> arguments{"train_resnet"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  TrainOptions options;
  parse(static_cast<int>(arguments.size()), arguments.data(), options, false);
  return options;
}

// Expects an error that names these two flags.
void expect_refusal(const std::vector<const char*>& flags, const char* one, const char* other) {
  const std::string text = message_of<UsageError>([&] { parsed(flags); });
  expect_contains(text, {one, other});
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(OptionRules, FlagsThatDoNothingTogetherAreRefusedByName) {
  expect_refusal({"--milestones", "3"}, "--milestones", "--schedule");
  expect_refusal({"--schedule", "steps"}, "--schedule", "--milestones");
  expect_refusal({"--schedule", "steps", "--milestones", "30,60"}, "--milestones", "--epochs is 2");
  expect_refusal({"--zero-init", "--weights", "a.safetensors"}, "--zero-init", "--weights");
  expect_refusal({"--gamma", "0.5", "--schedule", "cosine"}, "--gamma", "--schedule");
  expect_refusal({"--plateau-patience", "3"}, "--plateau-patience", "--schedule");
  expect_refusal({"--warmup", "1"}, "--warmup", "--schedule one_cycle");
  expect_refusal({"--warmup", "2", "--schedule", "cosine", "--epochs", "2"}, "--warmup",
                 "--epochs 2");
  expect_refusal({"--schedule", "steps", "--milestones", "1,3", "--warmup", "1"}, "--milestones",
                 "--warmup");
  expect_refusal({"--momentum", "0.9", "--optimizer", "adam"}, "--momentum", "--optimizer");
  expect_refusal({"--nesterov", "--optimizer", "adamw"}, "--nesterov", "--optimizer");
  expect_refusal({"--no-nesterov", "--optimizer", "lars"}, "--nesterov", "--optimizer");
  expect_refusal({"--nesterov", "--momentum", "0", "--schedule", "cosine"}, "--nesterov",
                 "--momentum");
  expect_refusal({"--no-norm-decay", "--weight-decay", "0"}, "--no-norm-decay", "--weight-decay");
  expect_refusal({"--accumulate", "9", "--batch-size", "8"}, "--accumulate", "--batch-size");
  expect_refusal({"--cuda-graph", "--accumulate", "2"}, "--cuda-graph", "--accumulate");
  expect_refusal({"--allow-tf32"}, "--allow-tf32", "--device cuda");
  expect_refusal({"--autotune"}, "--autotune", "--device cuda");
  expect_refusal({"--image-size", "64"}, "--image-size", "--dataset folder");
  expect_refusal({"--dataset", "folder"}, "--dataset folder", "--data DIR");
  expect_refusal({"--resume", "--overwrite"}, "--resume", "--overwrite");
  expect_refusal({"--precision", "fp16"}, "--precision", "--device");
}

TEST(OptionRules, WrongValuesAreRefused) {
  for (const char* text : {"0", "-1", "3;4", "x", "1000001"})
    expect_refusal({"--schedule", "steps", "--milestones", text}, "--milestones",
                   "a number from 1 to 1000000");
  for (const char* text : {"3,3", "6,3"})
    expect_refusal({"--schedule", "steps", "--milestones", text}, "--milestones", "30,60,80");
  expect_refusal({"--optimizer", "sdg"}, "sdg", "did you mean 'sgd'?");
  expect_refusal({"--schedule", "cosin"}, "cosin", "did you mean 'cosine'?");
  expect_refusal({"--ema", "1"}, "--ema", "got 1");
  expect_refusal({"--label-smoothing", "1.5"}, "--label-smoothing", "got 1.5");
  expect_refusal({"--mixup", "-1"}, "--mixup", "got -1");
  expect_refusal({"--clip-norm", "nan"}, "--clip-norm", "got nan");
  expect_refusal({"--accumulate", "0"}, "--accumulate", "got 0");
}

TEST(OptionRules, FlagsThatGoTogetherAreAccepted) {
  EXPECT_EQ(parsed({"--schedule", "steps", "--milestones", "30,60", "--epochs", "90"})
                .schedule.milestones,
            (std::vector<std::int64_t>{30, 60}));
  EXPECT_FALSE(
      parsed({"--schedule", "cosine", "--momentum", "0", "--no-nesterov"}).optimizer.nesterov);
  EXPECT_FALSE(parsed({"--no-norm-decay", "--optimizer", "lars"}).optimizer.norm_decay);
  EXPECT_EQ(parsed({"--schedule", "constant", "--warmup", "1"}).schedule.warmup, 1);
  EXPECT_TRUE(parsed({"--device", "cuda"}).cuda_graph);
  for (const char* without : {"--accumulate=2", "--no-cuda-graph", "--device=cpu"})
    EXPECT_FALSE(parsed({"--device", "cuda", without}).cuda_graph) << without;
}

TEST(OptionRules, EveryOptimizerHasItsDefaults) {
  EXPECT_EQ(parsed({}).optimizer.lr, 0.1);
  EXPECT_EQ(parsed({}).optimizer.weight_decay, 5e-4);
  EXPECT_EQ(parsed({"--optimizer", "adam"}).optimizer.lr, 1e-3);
  EXPECT_EQ(parsed({"--optimizer", "adam"}).optimizer.weight_decay, 0);
  EXPECT_EQ(parsed({"--optimizer", "adamw"}).optimizer.weight_decay, 1e-2);
  EXPECT_EQ(parsed({"--optimizer", "adamw", "--lr", "0.1"}).optimizer.lr, 0.1);
}

TEST(OptionRules, SettingsOfRanksAreAllButWhatAHostHasOfItsOwn) {
  const auto settings = [](const std::vector<const char*>& flags) {
    return settings_of_ranks(parsed(flags));
  };
  const std::string plain = settings({});
  expect_contains(plain, {"program = train_resnet\n", "lr = 0.1\n", "milestones = ''\n"});
  for (const std::vector<const char*>& flags :
       std::vector<std::vector<const char*>>{{"--lr", "0.2"},
                                             {"--batch-size", "64"},
                                             {"--seed", "1"},
                                             {"--mixup", "0.1"},
                                             {"--resume"},
                                             {"--log-every", "3"},
                                             {"--checkpoint-every", "3"},
                                             {"--freeze", "conv1.*"},
                                             {"--weights", "a.safetensors"},
                                             {"--device", "cuda"},
                                             {"--test-only"}})
    EXPECT_NE(settings(flags), plain) << flags[0];
  EXPECT_EQ(settings({"--data", "/elsewhere", "--out", "/there", "--threads", "3", "--workers", "2",
                      "--timeout", "7"}),
            plain);
  EXPECT_EQ(settings({"--weights", "a"}), settings({"--weights", "b"}));
  EXPECT_EQ(settings({"--device", "cuda:1"}), settings({"--device", "cuda:2"}));
}

TEST(OptionRules, AnotherRecipeIsAnotherRun) {
  // Checkpoints compare runs by this text.
  const std::string plain = options_of_checkpoint(parsed({}));
  for (const std::vector<const char*>& flags :
       std::vector<std::vector<const char*>>{{"--optimizer", "lars"},
                                             {"--no-norm-decay"},
                                             {"--clip-norm", "1"},
                                             {"--ema", "0.9"},
                                             {"--schedule", "constant"},
                                             {"--label-smoothing", "0.1"},
                                             {"--mixup", "0.1"},
                                             {"--cutmix", "1"},
                                             {"--zero-init"},
                                             {"--accumulate", "2"}})
    EXPECT_NE(options_of_checkpoint(parsed(flags)), plain) << flags[0];
  const std::string on_cuda = options_of_checkpoint(parsed({"--device", "cuda"}));
  for (const char* flag : {"--allow-tf32", "--autotune"})
    EXPECT_NE(options_of_checkpoint(parsed({"--device", "cuda", flag})), on_cuda) << flag;
}

}  // namespace
}  // namespace tutti
