// What ends a run on every rank, among it steps in which batch normalisation would have one value
// per channel, and runs without the last batch of each epoch.
#include "distributed/messages.h"
#include "refusal_case.h"
#include "small_run.h"
#include "train/checkpoint.h"
#include "train/training_batches.h"
#include "trainer_program.h"

#include <gtest/gtest.h>

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

TEST(BatchParts, ALoneImageOfOnePositionEndsARun) {
  expect_error<Error>([] { train_on(1, small_options(), tiny_images(21)); },
                      {"more than 1 value per channel"});
  TrainOptions o = small_options();
  o.freeze = {"layer3.*"};
  EXPECT_EQ(train_on(1, o, tiny_images(21)).front().rows.size(), 6u);
}

TEST(BatchParts, WhatEndsARunEndsItOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    const test::TemporaryFolder folder("refusals");
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      test::expect_refusals_on_every_rank(group, folder.path());
    });
  }
}

TEST(BatchParts, ARunWithoutItsLastBatchTrainsResumesAndRecomputesStatistics) {
  const test::TemporaryFolder folder("drop_last");
  const TrainingData data = tiny_images(21);
  for (const int ranks : {1, 3}) {
    TrainOptions o = small_options();
    o.drop_last = true;
    o.recompute_statistics = 100;
    o.bn_report = true;
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

TEST(BatchParts, TheProgramRefusesBeforeTheFirstStepThatNoBatchIsLeft) {
  const test::TemporaryFolder folder("no_batch");
  const auto outcome = run_trainer(
      "--dataset synthetic --batch-size 4096 --drop-last --threads 1 "
      "--out " +
          (folder / "run"),
      2);
  EXPECT_EQ(outcome.code, 2);
  expect_contains(outcome.output, {"--drop-last leaves no batch of 2048 training images"});
}

}  // namespace
}  // namespace tutti
