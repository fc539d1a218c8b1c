// The trainer over processes: it follows the loss curve of one process, all ranks stay identical,
// and threads, processes and any number of them go on with each other's checkpoints.
#include "train/trainer.h"
#include "../distributed/equal_bits.h"
#include "../examples/refusal_case.h"
#include "../temporary_folder.h"

#include <tutti/distributed/broadcast_text.h>

#include <gtest/gtest.h>

#include <csignal>
#include <optional>

namespace tutti {
namespace {

using namespace examples;

TrainOptions small_float64_options() {
  TrainOptions options;
  options.batch_size = 10;
  options.threads = 1;
  options.optimizer.lr = 0.05;
  options.log_every = 1;
  options.precision = float64;
  options.out = "";
  return options;
}

void expect_same_losses(const TrainResult& a, const TrainResult& b) {
  ASSERT_EQ(a.rows.size(), b.rows.size());
  for (std::size_t i = 0; i < b.rows.size(); ++i)
    EXPECT_NEAR(a.rows[i].train_loss / b.rows[i].train_loss, 1, 1e-10) << "step " << i + 1;
}

TEST(MpiTrainer, ProcessesFollowTheSameLossCurveAsOne) {
  // As in tests/examples/trainer_test.cpp, slices are uneven and the last batch leaves ranks with
  // nothing. In float64 a difference of 1e-10 is far above rounding and far below any mistake.
  const ProcessGroup& group = distributed::world();
  const TrainingData data = make_synthetic({.train = 21, .test = 13, .channels = 2, .size = 8});
  const TrainOptions options = small_float64_options();
  const TrainResult together = train(options, data, group, nullptr);
  const TrainResult alone = train(options, data, ProcessGroup(), nullptr);

  ASSERT_EQ(alone.rows.size(), 6u);
  expect_same_losses(together, alone);
  test::expect_equal_bits_on_every_rank(together.state, group);
}

// Trains for one step, as with a signal that comes in it.
void train_one_step(const TrainOptions& options, const TrainingData& data,
                    const ProcessGroup& group) {
  const StopRequest stop{SIGTERM};
  EXPECT_TRUE(train(options, data, group, nullptr, &stop).is_stopped);
}

TEST(MpiTrainer, ProcessesAndThreadsGoOnWithEachOthersCheckpoints) {
  const ProcessGroup& group = distributed::world();
  const TrainingData data = make_synthetic({.train = 21, .test = 13, .channels = 2, .size = 8});
  TrainOptions options = small_float64_options();
  const TrainResult alone = train(options, data, ProcessGroup(), nullptr);
  std::optional<test::TemporaryFolder> folder;
  if (group.rank() == 0) folder.emplace("mpi_other_ranks");
  options.out = distributed::broadcast_text(group, folder ? folder->path() : "", "folder");
  options.resume = true;
  if (group.rank() == 0)  // five ranks that are threads of one process make the first step
    distributed::run_ranks(
        5, [&](const ProcessGroup& threads) { train_one_step(options, data, threads); });
  group.barrier();
  train_one_step(options, data, group);
  const ProcessGroup fewer = group.split(group.rank() == group.size() - 1 ? -1 : 0);
  if (group.rank() < group.size() - 1) train_one_step(options, data, fewer);
  group.barrier();
  expect_same_losses(train(options, data, group, nullptr), alone);
  group.barrier();  // before rank 0 removes the folder
}

TEST(MpiTrainer, WhatEndsARunEndsItOnEveryRank) {
  const ProcessGroup& group = distributed::world();
  std::optional<test::TemporaryFolder> folder;
  if (group.rank() == 0) folder.emplace("mpi_refusals");
  test::expect_refusals_on_every_rank(
      group, distributed::broadcast_text(group, folder ? folder->path() : "", "folder"));
}

}  // namespace
}  // namespace tutti
