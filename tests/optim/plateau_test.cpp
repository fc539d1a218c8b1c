// Tests of ReduceOnPlateau against PyTorch's ReduceLROnPlateau, and of its state.
#include <tutti/optim/plateau.h>
#include <tutti/optim/schedule.h>
#include <tutti/optim/sgd.h>

#include "distributed/messages.h"
#include "fixture.h"

namespace tutti {
namespace {

using namespace optim;

// Runs over the values that PyTorch had, and saves and loads the state in the middle.
void check(const std::string& name, const ReduceOnPlateau::Options& options) {
  const auto values = to_vector(fixture("plateau." + name + ".values")),
             rates = to_vector(fixture("plateau." + name));
  SGD sgd({zeros({1}).requires_grad_()}, {.lr = 0.4});
  Scheduler scheduler(sgd, {});
  std::optional<ReduceOnPlateau> plateau(options);
  int reductions = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool reduced = plateau->update(values[i]);
    if (reduced) scheduler.set_scale(plateau->factor());
    reductions += reduced;
    ASSERT_NEAR(sgd.learning_rate(), rates[i], 1e-14) << name << ", value " << i;
    const StateDict state = plateau->state_dict();
    plateau.emplace(options);
    plateau->load_state_dict(state);
  }
  EXPECT_GT(reductions, 1) << name;
}

TEST(ReduceOnPlateau, SaysWhetherTheFactorHasChanged) {
  ReduceOnPlateau plateau({.gamma = 0.5, .patience = 0, .minimum = 0.25});
  std::vector<bool> changed;
  for (int i = 0; i < 4; ++i) changed.push_back(plateau.update(1));
  EXPECT_EQ(changed, (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(plateau.factor(), 0.25);
}

TEST(ReduceOnPlateau, AsPyTorchAlsoWithASavedStateInEveryStep) {
  check("minimum", {.gamma = 0.5, .patience = 3});
  check("cooldown", {.gamma = 0.3, .patience = 1, .cooldown = 4, .minimum = 0.05});
  check("maximum", {.gamma = 0.7, .patience = 2, .maximize = true, .threshold = 0.02});
  check("absolute", {.gamma = 0.7, .patience = 2, .threshold = 0.05, .relative = false});
  check("maximum_absolute",
        {.gamma = 0.7, .patience = 0, .maximize = true, .threshold = 0.05, .relative = false});
}

TEST(ReduceOnPlateau, TheBestValueIsKeptAndNanIsNone) {
  ReduceOnPlateau plateau({.patience = 0});
  EXPECT_FALSE(plateau.update(2));
  EXPECT_TRUE(plateau.update(std::nan("")));
  EXPECT_EQ(plateau.best(), 2);
  EXPECT_FALSE(plateau.update(1));
  EXPECT_EQ(plateau.best(), 1);
  EXPECT_DOUBLE_EQ(plateau.factor(), 0.1);
}

TEST(ReduceOnPlateau, AStateThatIsRefusedChangesNothing) {
  ReduceOnPlateau plateau({.patience = 0}), other;
  plateau.update(1);
  plateau.update(1);
  const StateDict good = plateau.state_dict();
  const auto expect_refused = [&](StateDict state, const char* word) {
    test::expect_error<CheckpointError>([&] { other.load_state_dict(state); }, {word});
    EXPECT_EQ(other.factor(), 1);
    EXPECT_EQ(other.best(), INFINITY);
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    StateDict state = good;
    state[i].second = scalar(std::nan(""), {.dtype = float64});
    expect_refused(state, good[i].first.c_str());
    state[i].second = scalar(1);
    expect_refused(state, good[i].first.c_str());
    state.erase(state.begin() + static_cast<std::ptrdiff_t>(i));
    expect_refused(state, good[i].first.c_str());
  }
  StateDict grows = good, more = good;
  grows[0].second = scalar(2, {.dtype = float64});
  expect_refused(grows, "factor must be a number from 0 to 1");
  more.emplace_back("more", scalar(1));
  expect_refused(more, "4 tensors");
  other.load_state_dict(good);
  EXPECT_EQ(other.factor(), plateau.factor());
}

TEST(ReduceOnPlateau, InvalidOptions) {
  for (const ReduceOnPlateau::Options& options :
       std::vector<ReduceOnPlateau::Options>{{.gamma = 1},
                                             {.gamma = -1},
                                             {.patience = -1},
                                             {.cooldown = -1},
                                             {.threshold = -1},
                                             {.threshold = 1},
                                             {.maximize = true, .threshold = INFINITY},
                                             {.threshold = INFINITY, .relative = false},
                                             {.minimum = 2}})
    EXPECT_THROW(ReduceOnPlateau{options}, ValueError);
  EXPECT_NO_THROW(ReduceOnPlateau({.maximize = true, .threshold = 1}));
  EXPECT_NO_THROW(ReduceOnPlateau({.threshold = 1, .relative = false}));
}

}  // namespace
}  // namespace tutti
