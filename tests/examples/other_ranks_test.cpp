// Runs that go on with another number of ranks: the loss curve continues, no image of the epoch is
// lost or repeated, and what must differ is said. The same over processes is tested in
// tests/mpi/trainer_test.cpp and tests/mpi/other_ranks.sh.
#include "distributed/equal_bits.h"
#include "distributed/messages.h"
#include "small_run.h"
#include "train/checkpoint.h"

#include <tutti/data/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <mutex>
#include <utility>

namespace tutti {
namespace {

using namespace examples;
using test::even_data;
using test::expect_contains;
using test::expect_equal_bits;
using test::odd_data;
using test::Screen;
using test::small_options;

class OtherRanks : public ::testing::Test {
 protected:
  TrainOptions options_in(const std::string& name) const {
    TrainOptions options = small_options();
    options.out = folder_ / name;
    options.resume = true;
    return options;
  }
  // Trains on the ranks until the end, or for one step, as with a signal that comes in it.
  TrainResult run(int ranks, const TrainOptions& options, const TrainingData& data,
                  bool one_step = false) {
    Screen screen;
    std::vector<TrainResult> results(static_cast<std::size_t>(ranks));
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      const StopRequest stop{one_step ? SIGTERM : 0};
      results[static_cast<std::size_t>(group.rank())] =
          train(options, data, group, screen.file(), &stop);
    });
    said_ = screen.text();
    for (const TrainResult& result : results) expect_equal_bits(result.state, results[0].state);
    return results[0];
  }

  // Changes the number of ranks after every step, and compares with a run on two ranks. In float64
  // a difference of 1e-10 is far above rounding and far below any mistake.
  void expect_same_curve(TrainOptions options, const TrainingData& data) {
    options.precision = float64;
    options.out = folder_ / "whole";
    const TrainResult whole = run(2, options, data);
    options.out = folder_ / "parts";
    for (const int ranks : {2, 1, 3, 4, 5}) run(ranks, options, data, true);
    const TrainResult parts = run(2, options, data);
    EXPECT_NE(said_.find("ranks 5 -> 2"), std::string::npos) << said_;
    ASSERT_EQ(parts.rows.size(), whole.rows.size());
    for (std::size_t i = 0; i < whole.rows.size(); ++i) {
      const Metrics &a = parts.rows[i], &b = whole.rows[i];
      EXPECT_EQ(a.step, b.step);
      EXPECT_EQ(a.learning_rate, b.learning_rate) << "step " << b.step;
      EXPECT_NEAR(a.train_loss / b.train_loss, 1, 1e-10) << "step " << b.step;
      EXPECT_EQ(a.train_accuracy, b.train_accuracy) << "step " << b.step;
      if (b.test_loss) {
        EXPECT_NEAR(*a.test_loss / *b.test_loss, 1, 1e-10) << "step " << b.step;
      }
    }
    for (std::size_t i = 0; i < whole.state.size(); ++i) {
      const auto a = to_vector(parts.state[i].second), b = to_vector(whole.state[i].second);
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t k = 0; k < a.size(); ++k)
        ASSERT_NEAR(a[k], b[k], 1e-7 * std::max(1.0, std::abs(b[k]))) << whole.state[i].first;
    }
  }

  const test::TemporaryFolder folder_{"other_ranks"};
  std::string said_;
};

TEST_F(OtherRanks, TheLossCurveGoesOnWhateverTheNumberOfRanks) {
  // Parts are uneven, and the last batch of an epoch leaves ranks without images. A row of metrics
  // counts steps of different numbers of ranks.
  TrainOptions options = options_in("");
  options.log_every = 2;
  expect_same_curve(options, odd_data());
}

TEST_F(OtherRanks, OptimizerScheduleAndAveragesGoOn) {
  TrainOptions options = options_in("");
  options.optimizer.name = "adamw";
  options.optimizer.lr = 1e-3;
  options.optimizer.ema = 0.5;
  options.optimizer.clip_norm = 1;
  options.schedule.name = "cosine";
  options.schedule.warmup = 1;
  expect_same_curve(options, even_data());
}

// Notes which images are read. Loaders without threads read those of the present step only.
class NotingDataset final : public data::Dataset {
 public:
  explicit NotingDataset(std::shared_ptr<const data::Dataset> images)
      : images_(std::move(images)) {}
  std::int64_t size() const override { return images_->size(); }
  data::Sample get(std::int64_t index) const override {
    const std::lock_guard lock(mutex_);
    read_.push_back(index);
    return images_->get(index);
  }
  // Returns the images read since the last call, in the order of their numbers.
  std::vector<std::int64_t> take() const {
    const std::lock_guard lock(mutex_);
    std::ranges::sort(read_);
    return std::exchange(read_, {});
  }

 private:
  std::shared_ptr<const data::Dataset> images_;
  mutable std::mutex mutex_;
  mutable std::vector<std::int64_t> read_;
};

// Returns the images of some steps of a run with small_options() on even_data().
std::vector<std::int64_t> images_of_steps(std::int64_t begin, std::int64_t end) {
  const data::DistributedSampler sampler(30, {.batch_size = 10});
  std::vector<std::int64_t> images;
  for (std::int64_t step = begin; step < end; ++step) {
    const auto order = sampler.order(step / 3);
    const auto range = sampler.global_range(step % 3);
    images.insert(images.end(), order.begin() + range.begin, order.begin() + range.end);
  }
  std::ranges::sort(images);
  return images;
}

TEST_F(OtherRanks, NoImageOfAnEpochIsLostOrRepeatedAlsoWhereImagesAreMixed) {
  TrainOptions options = options_in("run");
  options.workers = 0;
  options.augmentation.mixup = 0.4;
  const auto images = std::make_shared<NotingDataset>(even_data().train);
  TrainingData data = even_data();
  data.train = images;
  run(2, options, data, true);
  EXPECT_EQ(images->take(), images_of_steps(0, 1));
  run(3, options, data);
  EXPECT_EQ(images->take(), images_of_steps(1, 6));
}

TEST_F(OtherRanks, AnotherNumberIsSaid) {
  TrainOptions options = options_in("run");
  run(2, options, even_data(), true);
  run(3, options, even_data(), true);
  expect_contains(
      said_, {"ranks 2 -> 3: the global batch of 10 images and the order of the images stay\n"});
  run(3, options, even_data(), true);
  EXPECT_EQ(said_.find("ranks 3"), std::string::npos) << said_;
}

TEST_F(OtherRanks, TheSumsOfAllRanksGoOn) {
  Checkpoint from;
  from.random = tensor({1, 10, 2, 20, 3, 30}, {3, 2}, {.dtype = int64});
  from.sums = tensor({0.5, 1, 4, 0.25, 2, 5, 8, 3, 6}, {3, 3}, {.dtype = float64});
  EXPECT_EQ(from.ranks(), 3);
  EXPECT_EQ(to_vector(sums_of_rank(from, 1, 3)), (std::vector<double>{0.25, 2, 5}));
  EXPECT_EQ(to_vector(sums_of_rank(from, 0, 2)), (std::vector<double>{8.5, 4, 10}));
  EXPECT_EQ(to_vector(sums_of_rank(from, 1, 2)), (std::vector<double>{0.25, 2, 5}));
  EXPECT_EQ(to_vector(sums_of_rank(from, 0, 1)), (std::vector<double>{8.75, 6, 15}));
  EXPECT_EQ(to_vector(sums_of_rank(from, 3, 4)), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(to_vector(random_of_rank(from, 1)), (std::vector<double>{2, 20}));
  EXPECT_EQ(to_vector(random_of_rank(from, 4)), (std::vector<double>{2, 20}));
}

}  // namespace
}  // namespace tutti
