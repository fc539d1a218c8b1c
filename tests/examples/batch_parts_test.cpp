// Steps in which batch normalisation would have one value per channel: they are known before the
// first step, whoever shares the images of a step, and --drop-last leaves out the usual one.
#include "distributed/messages.h"
#include "refusal_case.h"
#include "small_run.h"
#include "train/checkpoint.h"
#include "train/training_batches.h"
#include "trainer_program.h"

#include <tutti/data/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

using namespace examples;
using test::expect_contains;
using test::expect_error;
using test::run_trainer;
using test::small_options;
using test::train_on;

// Images of 4 x 4 pixels, of which the last stage of a ResNet-20 sees one position.
TrainingData tiny_images(std::int64_t count) {
  return make_synthetic({.train = count, .test = 5, .channels = 1, .size = 4});
}

// Returns what check_batches() says; empty if it accepts the run.
std::string refusal_of(int ranks, const TrainOptions& options, const TrainingData& data) {
  try {
    distributed::run_ranks(ranks,
                           [&](const ProcessGroup& group) { check_batches(options, data, group); });
  } catch (const ErrorOnAllRanks& refused) {
    return refused.what();
  }
  return {};
}

// Divides every step of an epoch as the samplers and TrainingStep do, and counts the images that
// are normalised together. Returns the first step, from 1, with a lone one; 0 if there is none.
std::int64_t lone_step_by_counting(const TrainOptions& o, const std::vector<std::int64_t>& scopes,
                                   std::int64_t all) {
  const auto ranks = static_cast<int>(scopes.size());
  std::int64_t steps = steps_per_epoch(o, ranks, all);
  if (o.max_steps > 0) steps = std::min(steps, o.max_steps);
  const auto remainder = o.drop_last ? data::Remainder::drop : data::Remainder::keep;
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<std::int64_t> images;
    std::int64_t global_size = 0;
    for (int r = 0; r < ranks; ++r) {
      const data::DistributedSampler sampler(
          o.sharded ? all * (r + 1) / ranks - all * r / ranks : all,
          {.batch_size = o.sharded ? own_batch_size(o, ranks) : o.batch_size,
           .rank = o.sharded ? 0 : r,
           .ranks = o.sharded ? 1 : ranks,
           .remainder = remainder});
      const auto range = step < sampler.batches() ? sampler.rank_range(step)
                                                  : data::DistributedSampler::Range();
      images.push_back(range.end - range.begin);
      global_size += images.back();
    }
    const std::int64_t count = micro_batches(o, ranks, global_size);
    for (std::int64_t i = 0; i < count; ++i)
      for (const std::int64_t scope : scopes) {
        std::int64_t together = 0;
        for (std::size_t r = 0; r < images.size(); ++r)
          if (scopes[r] == scope) together += images[r] * (i + 1) / count - images[r] * i / count;
        if (together == 1) return step + 1;
      }
  }
  return 0;
}

TEST(BatchParts, LoneImagesAreFoundAsByCounting) {
  Generator random(5);
  const auto draw = [&](int low, int high) {
    return low + static_cast<std::int64_t>(random.uniform() * (high - low + 1));
  };
  int found = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::int64_t ranks = draw(1, 6), width = draw(1, 6);
    TrainOptions o;
    o.batch_size = draw(1, 24);
    o.accumulate = draw(1, 4);
    o.sharded = draw(0, 1) == 1;
    o.uneven = draw(0, 1) == 1 ? distributed::Uneven::stop : distributed::Uneven::shadow;
    std::vector<std::int64_t> scopes;
    for (std::int64_t r = 0; r < ranks; ++r) scopes.push_back(r / width);
    o.drop_last = draw(0, 2) == 0;
    const std::int64_t all = draw(o.drop_last ? 24 * static_cast<int>(ranks) : 1, 150);
    o.max_steps = draw(0, 1) * draw(1, 40);
    const std::int64_t expected = lone_step_by_counting(o, scopes, all);
    ASSERT_EQ(step_with_a_lone_image(o, scopes, all), expected)
        << ranks << " ranks, scopes of " << width << ", batch " << o.batch_size << ", accumulate "
        << o.accumulate << ", sharded " << o.sharded << ", drop_last " << o.drop_last << ", " << all
        << " images, most steps " << o.max_steps;
    found += expected > 0;
  }
  EXPECT_GT(found, 2000);
  EXPECT_LT(found, 18'000);
}

// What is refused would fail, and what is accepted trains to the end.
TEST(BatchParts, ARunFailsExactlyWhereItIsRefused) {
  struct Case {
    int ranks;
    std::int64_t images, batch_size, accumulate;
    bool sync_bn = true;
    std::string scope = "world";
    bool sharded = false;
    std::int64_t max_steps = 0, statistics = 0;
  };
  int refused = 0;
  for (const Case& c : std::vector<Case>{{1, 21, 10, 1},
                                         {1, 20, 10, 1},
                                         {2, 21, 10, 1},
                                         {2, 22, 10, 1},
                                         {2, 22, 10, 1, false},
                                         {3, 20, 5, 1, false},
                                         {3, 24, 6, 1, false},
                                         {2, 23, 10, 1, false},
                                         {1, 20, 10, 10},
                                         {2, 20, 10, 5},
                                         {2, 20, 10, 5, false},
                                         {3, 21, 9, 1, true, "2"},
                                         {3, 20, 9, 1, true, "2"},
                                         {3, 21, 10, 1, true, "host"},
                                         {2, 22, 10, 1, true, "world", true},
                                         {2, 22, 10, 1, false, "world", true},
                                         {3, 32, 15, 1, true, "world", true},
                                         {3, 31, 15, 1, true, "world", true},
                                         {1, 21, 10, 1, true, "world", false, 2},
                                         {1, 21, 20, 2, true, "world", false, 0, 3},
                                         {1, 20, 20, 2, true, "world", false, 0, 3},
                                         {1, 22, 20, 2, true, "world", false, 1, 3}}) {
    TrainOptions o = small_options();
    o.epochs = 1;
    o.batch_size = c.batch_size;
    o.accumulate = c.accumulate;
    o.sync_bn = c.sync_bn;
    o.sync_bn_scope = c.scope;
    o.sharded = c.sharded;
    o.max_steps = c.max_steps;
    o.recompute_statistics = c.statistics;
    const TrainingData data = tiny_images(c.images);
    const std::string refusal = refusal_of(c.ranks, o, data);
    std::string failure;
    try {
      distributed::run_ranks(c.ranks, [&](const ProcessGroup& group) {
        const TrainingData own = o.sharded ? shard(data, group.rank(), group.size()) : data;
        train(o, own, group, nullptr);
      });
    } catch (const Error& error) {
      failure = error.what();
    }
    EXPECT_EQ(refusal.empty(), failure.empty())
        << c.ranks << " ranks, " << c.images << " images, batch " << c.batch_size << ", accumulate "
        << c.accumulate << "\n"
        << refusal << "\n"
        << failure;
    refused += !refusal.empty();
  }
  EXPECT_GT(refused, 7);
}

TEST(BatchParts, TheRefusalNamesStepLayerAndFlag) {
  TrainOptions o = small_options();
  const std::string usual = refusal_of(2, o, tiny_images(21));
  expect_contains(usual, {"batch 3 of an epoch", "'layer3.0.bn1'", "give --drop-last"});
  o.accumulate = 5;
  o.sync_bn = false;
  const std::string each = refusal_of(2, o, tiny_images(20));
  expect_contains(
      each, {"batch 1 of an epoch", "a greater --batch-size, a smaller --accumulate", "--sync-bn"});
  EXPECT_EQ(each.find("--drop-last"), std::string::npos) << each;
  o = small_options();
  o.sync_bn_scope = "1";
  expect_contains(refusal_of(2, o, tiny_images(21)), {"give --drop-last"});
  o = small_options();
  o.drop_last = true;
  expect_contains(refusal_of(2, o, tiny_images(9)),
                  {"--drop-last leaves no batch of 9 training images", "less than 10"});
  o.sharded = true;
  expect_contains(refusal_of(2, o, tiny_images(9)), {"--drop-last leaves no batch"});
}

TEST(BatchParts, WhatEndsARunEndsItOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    const test::TemporaryFolder folder("refusals");
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      test::expect_refusals_on_every_rank(group, folder.path());
    });
  }
}

TEST(BatchParts, LargerMapsAndFrozenLayersNeedNoMoreImages) {
  TrainOptions o = small_options();
  EXPECT_EQ(refusal_of(1, o, test::odd_data()), "");
  o.freeze = {"layer3.*"};
  EXPECT_EQ(refusal_of(1, o, tiny_images(21)), "");
  EXPECT_EQ(train_on(1, o, tiny_images(21)).front().rows.size(), 6u);
}

TEST(BatchParts, ARunWithoutItsLastBatchTrainsResumesAndRecomputesStatistics) {
  const test::TemporaryFolder folder("drop_last");
  const TrainingData data = tiny_images(21);
  for (const int ranks : {1, 3}) {
    TrainOptions o = small_options();
    o.drop_last = true;
    o.recompute_statistics = 100;
    o.bn_report = true;
    EXPECT_EQ(refusal_of(ranks, o, data), "");
    o.epochs = 3;
    const TrainResult whole = train_on(ranks, o, data).front();
    EXPECT_EQ(whole.rows.size(), 6u);
    o.out = folder / fmt::format("run{}", ranks);
    o.checkpoint_every = 1;
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      const StopRequest stop{SIGTERM};
      EXPECT_TRUE(train(o, data, group, nullptr, &stop).is_stopped);
    });
    o.resume = true;
    const TrainResult parts = train_on(ranks, o, data).front();
    ASSERT_EQ(parts.rows.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_EQ(parts.rows[i].train_loss, whole.rows[i].train_loss) << i;
    o.drop_last = false;
    expect_error<Error>([&] { train_on(ranks, o, data); },
                        {"drop_last = true, this one has false"});
  }
}

TEST(BatchParts, TheProgramRefusesBeforeTheFirstStepAndKeepsTheOldRun) {
  const test::TemporaryFolder folder("lone");
  const std::string out = folder / "run", arguments =
                                              "--dataset synthetic --model resnet18 "
                                              "--batch-size 89 --threads 1 --out " +
                                              out + " ";
  std::filesystem::create_directories(out);
  std::ofstream(out + "/metrics.jsonl") << "of an older run\n";
  for (const char* more : {"--dry-run", "--overwrite", "--overwrite --ranks 2"}) {
    const auto outcome = run_trainer(arguments + more, 2);
    EXPECT_EQ(outcome.code, 2) << more;
    expect_contains(outcome.output, {"batch 24 of an epoch", "'layer4.0.bn1'", "--drop-last"});
    EXPECT_EQ(std::ranges::count(outcome.output, '\n'), 1) << outcome.output;
    EXPECT_EQ(test::content(out + "/metrics.jsonl"), "of an older run\n");
  }
  const auto outcome = run_trainer(arguments + "--dry-run --drop-last", 1);
  EXPECT_EQ(outcome.code, 0);
  expect_contains(outcome.output, {"23 steps in an epoch"});
}

}  // namespace
}  // namespace tutti
