// Tests of ExponentialMovingAverage against its formula in float64, and of its state.
#include "distributed/messages.h"

#include <tutti/optim/exponential_moving_average.h>

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/random.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace tutti {
namespace {

using optim::ExponentialMovingAverage;

class Averages : public ::testing::Test {
 protected:
  Averages() {
    const auto seed = static_cast<std::uint64_t>(std::random_device()());
    fmt::print("seed {}\n", seed);
    manual_seed(seed);
    weight_.requires_grad_();
  }
  void change_values() {
    const NoGrad no_grad;
    weight_.copy_(randn({2, 3}, {.dtype = float64}));
    running_.copy_(randn({3}));
    counter_.fill_(counter_.item<double>() + 1);
  }
  StateDict parameters() const { return {{"weight", weight_}}; }
  StateDict buffers() const { return {{"running", running_}, {"counter", counter_}}; }

  Tensor weight_ = randn({2, 3}, {.dtype = float64});
  Tensor running_ = randn({3}), counter_ = zeros({}, {.dtype = int64});
};

// Returns the average of this name.
Tensor average_of(const ExponentialMovingAverage& averages, const std::string& name) {
  for (const auto& [key, tensor] : averages.state_dict())
    if (key == "average." + name) return tensor;
  throw std::out_of_range(name);
}

TEST_F(Averages, OfEqualValuesAreThatValueToTheBit) {
  const Tensor frozen = randn({100}), before = frozen.clone();
  ExponentialMovingAverage average({{"frozen", frozen}}, {}, 0.9999);
  for (int step = 0; step < 1000; ++step) average.update();
  average.exchange();
  EXPECT_EQ(to_vector(frozen), to_vector(before));
}

TEST_F(Averages, FollowTheFormulaOfPyTorchFromTheFirstValuesOn) {
  // torch.optim.swa_utils.AveragedModel with avg_fn = decay * average + (1 - decay) * value.
  constexpr double decay = 0.9;
  ExponentialMovingAverage averages(parameters(), buffers(), decay);
  std::vector<double> weight, running;
  for (int step = 0; step < 20; ++step) {
    change_values();
    averages.update();
    const std::vector<double> w = to_vector(weight_), r = to_vector(running_);
    if (step == 0) weight = w, running = r;
    for (std::size_t i = 0; step > 0 && i < w.size(); ++i)
      weight[i] = decay * weight[i] + (1 - decay) * w[i];
    for (std::size_t i = 0; step > 0 && i < r.size(); ++i)
      running[i] = decay * running[i] + (1 - decay) * r[i];
  }
  const std::vector<double> w = to_vector(average_of(averages, "weight")),
                            r = to_vector(average_of(averages, "running"));
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], weight[i], 1e-14);
  for (std::size_t i = 0; i < r.size(); ++i) EXPECT_NEAR(r[i], running[i], 1e-6);
  EXPECT_EQ(average_of(averages, "counter").item<int>(), 20);  // copied, not averaged
  EXPECT_EQ(averages.updates(), 20);
}

TEST_F(Averages, AfterARestartTheNextUpdateCopies) {
  ExponentialMovingAverage averages(parameters(), buffers(), 0.9);
  for (int step = 0; step < 3; ++step) {
    change_values();
    averages.update();
  }
  EXPECT_NE(to_vector(average_of(averages, "weight")), to_vector(weight_));
  averages.restart();
  averages.update();
  EXPECT_EQ(to_vector(average_of(averages, "weight")), to_vector(weight_));
}

TEST_F(Averages, AnExchangePutsThemIntoTheModelAndBack) {
  ExponentialMovingAverage averages(parameters(), buffers(), 0.5);
  averages.update();
  change_values();
  averages.update();
  const auto model = to_vector(weight_), average = to_vector(average_of(averages, "weight"));
  const void* const address = weight_.raw();
  {
    const ExponentialMovingAverage::Exchange exchange(averages);
    EXPECT_EQ(to_vector(weight_), average);
    EXPECT_EQ(to_vector(average_of(averages, "weight")), model);
    running_.fill_(7);  // recomputed statistics stay with the averages
  }
  EXPECT_EQ(to_vector(weight_), model);
  EXPECT_EQ(weight_.raw(), address);  // a captured graph reads the same memory
  EXPECT_TRUE(weight_.requires_grad());
  EXPECT_EQ(to_vector(average_of(averages, "running")), (std::vector<double>{7, 7, 7}));
}

TEST_F(Averages, GoOnFromTheirState) {
  ExponentialMovingAverage one(parameters(), buffers(), 0.8), other(parameters(), buffers(), 0.8);
  for (int step = 0; step < 6; ++step) {
    change_values();
    one.update();
    if (step == 2) other.load_state_dict(one.state_dict());
    if (step > 2) other.update();
  }
  for (const char* name : {"weight", "running", "counter"})
    EXPECT_EQ(to_vector(average_of(one, name)), to_vector(average_of(other, name))) << name;
  EXPECT_EQ(other.updates(), 6);
}

TEST_F(Averages, AStateThatDoesNotFitIsNamedAndChangesNothing) {
  ExponentialMovingAverage averages(parameters(), buffers(), 0.8);
  averages.update();
  const auto before = to_vector(average_of(averages, "weight"));
  const auto refuse = [&](const std::function<void(StateDict&)>& change, const std::string& what) {
    StateDict state;
    for (const auto& [name, tensor] : averages.state_dict())
      state.emplace_back(name, tensor.clone());
    state[1].second.fill_(3);
    change(state);
    test::expect_error<CheckpointError>([&] { averages.load_state_dict(state); }, {what});
    EXPECT_EQ(to_vector(average_of(averages, "weight")), before) << what;
    EXPECT_EQ(averages.updates(), 1);
  };
  refuse([](StateDict& state) { state.erase(state.begin()); }, "'updates' is missing");
  refuse([](StateDict& state) { state.pop_back(); }, "'average.counter' is missing");
  refuse([](StateDict& state) { state[0].second.fill_(-1); }, "at least 0, got -1");
  refuse([](StateDict& state) { state[1].second = zeros({2, 3}); }, "is float32 (2, 3), expected");
  refuse([](StateDict& state) { state[2].second = zeros({4}); }, "expected float32 (3,)");
  refuse([](StateDict& state) { state[2].first = "average.weight"; }, "occurs twice");
  refuse([](StateDict& state) { state.emplace_back("odd", ones({})); }, "'odd' is unknown");
}

TEST_F(Averages, TheDecayIsAtLeast0AndBelow1) {
  for (const double decay : {-0.1, 1.0, std::nan("")})
    EXPECT_THROW(ExponentialMovingAverage(parameters(), buffers(), decay), ValueError) << decay;
}

}  // namespace
}  // namespace tutti
