// Tests of the schedules against PyTorch's, and of the edge cases that PyTorch leaves undefined.
#include <tutti/optim/plateau.h>
#include <tutti/optim/schedule.h>
#include <tutti/optim/sgd.h>

#include "fixture.h"

namespace tutti {
namespace {

using namespace optim;

// Runs a schedule on SGD with a learning rate of 0.4 and compares the rate of every step with
// PyTorch's.
void check(const std::string& name, Schedule rate) {
  SGD sgd({zeros({1}).requires_grad_()}, {.lr = 0.4});
  Scheduler scheduler(sgd, std::move(rate));
  const auto rates = to_vector(fixture("schedule." + name));
  for (std::size_t step = 0; step < rates.size(); ++step) {
    EXPECT_NEAR(sgd.learning_rate(), rates[step], 1e-12) << name << ", step " << step;
    scheduler.step();
  }
}

TEST(Schedule, AsPyTorch) {
  check("step", step_decay({.every = 7, .gamma = 0.3}));
  check("multi_step", multi_step({.milestones = {20, 11, 4, 11}, .gamma = 0.3}));
  check("cosine", cosine({.steps = 29, .minimum = 0.1}));
  check("warmup", linear_warmup({.steps = 9, .start = 0.2}));
  check("warmup_step",
        linear_warmup({.steps = 9, .start = 0.2}, step_decay({.every = 4, .gamma = 0.5})));
  check("one_cycle", one_cycle({.steps = 37}));
  check(
      "one_cycle_linear",
      one_cycle({.steps = 40, .warm_fraction = 0.25, .div = 10, .final_div = 100, .linear = true}));
}

TEST(Schedule, PastTheEndItStays) {
  EXPECT_EQ(cosine({.steps = 5, .minimum = 0.25})(50), 0.25);
  EXPECT_EQ(linear_warmup({.steps = 5})(50), 1);
  const Schedule cycle = one_cycle({.steps = 10});
  EXPECT_EQ(cycle(10), cycle(9));
}

TEST(Schedule, AWarmPartOfOneStepBeginsAtTheTop) {
  EXPECT_EQ(one_cycle({.steps = 8, .warm_fraction = 0.125})(0), 1);
}

TEST(Schedule, AScaleThatTheOptimizerRefusesChangesNothing) {
  SGD sgd({zeros({1}).requires_grad_()}, {.lr = 10});
  Scheduler scheduler(sgd, {});
  EXPECT_THROW(scheduler.set_scale(1e308), ValueError);
  EXPECT_EQ(scheduler.scale(), 1);
  scheduler.set_position(1);
  EXPECT_EQ(sgd.learning_rate(), 10);
}

TEST(Schedule, TheScaleMultipliesEveryStep) {
  SGD sgd({zeros({1}).requires_grad_()}, {.lr = 0.4});
  Scheduler scheduler(sgd, multi_step({.milestones = {2}, .gamma = 0.1}));
  scheduler.set_scale(0.5);
  EXPECT_DOUBLE_EQ(sgd.learning_rate(), 0.2);
  scheduler.set_position(2);
  EXPECT_DOUBLE_EQ(sgd.learning_rate(), 0.02);
  for (const double refused : {-1.0, double(INFINITY), std::nan("")})
    EXPECT_THROW(scheduler.set_scale(refused), ValueError);
  EXPECT_EQ(scheduler.scale(), 0.5);
  EXPECT_DOUBLE_EQ(sgd.learning_rate(), 0.02);
}

TEST(Schedule, VeryShortRuns) {
  for (const std::int64_t steps : {1, 2, 3, 4})
    for (std::int64_t step = 0; step < steps; ++step) {
      const double factor = one_cycle({.steps = steps})(step);
      EXPECT_TRUE(factor > 0 && factor <= 1) << steps << " steps, step " << step << ": " << factor;
    }
}

TEST(Schedule, ResumesAtAPosition) {
  SGD a({zeros({1}).requires_grad_()}, {.lr = 0.4}), b({zeros({1}).requires_grad_()}, {.lr = 0.4});
  Scheduler one(a, cosine({.steps = 10})), two(b, cosine({.steps = 10}));
  for (int i = 0; i < 6; ++i) one.step();
  two.set_position(6);
  EXPECT_EQ(a.learning_rate(), b.learning_rate());
  EXPECT_THROW(two.set_position(-1), ValueError);
}

TEST(Schedule, APositionThatIsRefusedChangesNothing) {
  const Tensor a = zeros({1}).requires_grad_(), b = zeros({1}).requires_grad_();
  SGD sgd({SGD::Group{{a}, {.lr = 0.4}}, SGD::Group{{b}, {.lr = 0.2}}});
  Scheduler scheduler(sgd, [](std::int64_t step) { return step == 2 ? -1.0 : 1.0; });
  EXPECT_THROW(scheduler.set_position(2), ValueError);
  EXPECT_EQ(sgd.learning_rate(0), 0.4);
  EXPECT_EQ(sgd.learning_rate(1), 0.2);
  EXPECT_EQ(scheduler.position(), 0);
}

TEST(Schedule, InvalidOptions) {
  EXPECT_THROW(step_decay({.every = 0}), ValueError);
  EXPECT_THROW(multi_step({.milestones = {3, 0}}), ValueError);
  EXPECT_THROW(multi_step({.milestones = {3}, .gamma = -1}), ValueError);
  EXPECT_THROW(cosine({.steps = 0}), ValueError);
  EXPECT_THROW(linear_warmup({.steps = 3, .start = 2}), ValueError);
  EXPECT_THROW(one_cycle({.steps = 0}), ValueError);
  EXPECT_THROW(one_cycle({.steps = 5, .warm_fraction = 1.5}), ValueError);
  EXPECT_THROW(one_cycle({.steps = 5, .div = 0}), ValueError);
}

}  // namespace
}  // namespace tutti
