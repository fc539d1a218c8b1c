// The trainer over processes: it follows the loss curve of one process, and all ranks stay
// identical.
#include "train/trainer.h"
#include "../distributed/equal_bits.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace examples;

TEST(MpiTrainer, ProcessesFollowTheSameLossCurveAsOne) {
  // As in tests/examples/trainer_test.cpp, slices are uneven and the last batch leaves ranks with
  // nothing. In float64 a difference of 1e-10 is far above rounding and far below any mistake.
  const ProcessGroup& group = distributed::world();
  const TrainingData data = make_synthetic({.train = 21, .test = 13, .channels = 2, .size = 8});
  TrainOptions options;
  options.batch_size = 10;
  options.threads = 1;
  options.optimizer.lr = 0.05;
  options.log_every = 1;
  options.precision = float64;
  options.out = "";
  const TrainResult together = train(options, data, group, nullptr);
  const TrainResult alone = train(options, data, ProcessGroup(), nullptr);

  ASSERT_EQ(alone.rows.size(), 6u);
  ASSERT_EQ(together.rows.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(together.rows[i].train_loss / alone.rows[i].train_loss, 1, 1e-10)
        << "step " << i + 1;
  test::expect_equal_bits_on_every_rank(together.state, group);
}

}  // namespace
}  // namespace tutti
