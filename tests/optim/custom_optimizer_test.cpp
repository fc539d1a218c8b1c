// Optimizers that are written outside the library, by overriding update_one(): those of
// examples/custom_optimizer.cpp against their formulas in float64, and what the base class does for
// them: options, states, 16-bit parameters, overflowed steps.
#include "amsgrad.h"
#include "fixture.h"

#define main custom_optimizer_main
#include "../../examples/custom_optimizer.cpp"
#undef main

#include <random>

namespace tutti {
namespace {

using Values = std::vector<double>;
using optim::GradScaler;
using optim::OptimizerState;
using optim::Scheduler;

// Takes 30 steps along random gradients, of which some are absent, and compares them with
// `formula(p, g, states)` for one element in float64.
template <class Method, class Formula>
void expect_formula(const typename Method::Options& options, std::size_t state_count,
                    const Formula& formula) {
  const auto p = start();
  Method method(p, options);
  std::vector<Values> expected;
  std::vector<std::vector<Values>> states;
  for (const Tensor& parameter : p) {
    expected.push_back(to_vector(parameter));
    states.emplace_back(expected.back().size(), Values(state_count));
  }
  for (int step = 0; step < 30; ++step) {
    give_gradients(p, step % 20, true);
    for (std::size_t k = 0; k < p.size(); ++k) {
      if (!p[k].grad().defined()) continue;
      const Values g = to_vector(p[k].grad());
      for (std::size_t i = 0; i < g.size(); ++i) formula(expected[k][i], g[i], states[k][i]);
    }
    method.step();
    for (std::size_t k = 0; k < p.size(); ++k)
      ASSERT_LT(test::relative_error(p[k].detach(), tensor(expected[k], p[k].shape(), {float64})),
                1e-13)
          << "parameter " << k << ", step " << step;
  }
}

TEST(CustomOptimizer, LionFollowsItsFormula) {
  const LionOptions o{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};
  expect_formula<Lion>(o, 1, [&](double& p, double g, Values& s) {
    const double mixed = o.beta1 * s[0] + (1 - o.beta1) * g;
    p -= o.lr * ((mixed > 0) - (mixed < 0) + o.weight_decay * p);
    s[0] = o.beta2 * s[0] + (1 - o.beta2) * g;
  });
}

TEST(CustomOptimizer, ThreeStatesAndTheStepNumber) {
  const AmsgradOptions o{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6};
  expect_formula<Amsgrad>(o, 4, [&](double& p, double g, Values& s) {
    const double step = ++s[3];
    s[0] = o.beta1 * s[0] + (1 - o.beta1) * g;
    s[1] = o.beta2 * s[1] + (1 - o.beta2) * g * g;
    s[2] = std::max(s[2], s[1]);
    p -= o.lr * s[0] / (1 - std::pow(o.beta1, step)) /
         (std::sqrt(s[2] / (1 - std::pow(o.beta2, step))) + o.eps);
  });
}

// A run in which random steps overflow, the first one among them, against a run without them.
template <class Method>
void expect_overflows_are_skipped(const typename Method::Options& options, DType dtype) {
  std::mt19937 random(1);
  const auto p = start(dtype), q = start(dtype);
  Method scaled(p, options), plain(q, options);
  GradScaler scaler({.init_scale = 1024});  // A power of two: scaling is exact.
  for (int step = 0; step < 20; ++step) {
    give_gradients(p, step);
    const bool overflows = step == 0 || random() % 3 == 0;
    for (const Tensor& parameter : p)
      parameter.set_grad((parameter.grad() * scaler.current_scale()).detach());
    if (overflows) {
      p[random() % 2].grad().flatten().select(0, 1).fill_(random() % 2 == 0 ? INFINITY : NAN);
    } else {
      give_gradients(q, step);
      plain.step();
    }
    scaler.step(scaled);
    scaler.update();
    for (std::size_t k = 0; k < p.size(); ++k)
      ASSERT_EQ(to_vector(p[k]), to_vector(q[k])) << "step " << step;
    const OptimizerState a = scaled.state_dict(), b = plain.state_dict();
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i)
      ASSERT_EQ(to_vector(a.tensors[i].second), to_vector(b.tensors[i].second))
          << a.tensors[i].first << ", step " << step;
  }
}

TEST(CustomOptimizer, AnOverflowedStepIsSkippedWithoutALineOfItsOwn) {
  for (const DType dtype : {float64, float32, bfloat16}) {
    SCOPED_TRACE(to_string(dtype));
    expect_overflows_are_skipped<Lion>({.lr = 0.01}, dtype);
    expect_overflows_are_skipped<Amsgrad>({.lr = 0.01}, dtype);
  }
}

// Adds a number that a 16-bit parameter cannot hold, and keeps what it was given.
struct ProbeOptions {
  double lr = 0x1p-12;
};
class Probe : public optim::OptimizerWith<ProbeOptions> {
 public:
  explicit Probe(std::vector<Tensor> parameters)
      : OptimizerWith({.name = "Probe", .options = {{"lr", &Options::lr}}, .states = {"sum"}},
                      {Group{std::move(parameters), {}}}) {}
  std::vector<Tensor> given = {};

 protected:
  void update_one(const optim::ParameterUpdate& u) override {
    given = {u.parameter, u.gradient, u.states[0], u.step};
    u.parameter.add_(u.gradient, options(u.group).lr);
    u.states[0].add_(u.parameter);
  }
};

TEST(CustomOptimizer, SixteenBitParametersAreComputedInFloat32) {
  for (const DType dtype : {bfloat16, float16}) {
    const Tensor p = ones({5}).to(dtype).requires_grad_();
    Probe probe({p});
    p.set_grad(ones({5}).to(dtype));
    probe.step();
    for (const Tensor& t : probe.given) EXPECT_EQ(t.dtype(), float32);
    EXPECT_EQ(to_vector(probe.given[2]), Values(5, 1 + 0x1p-12)) << "before rounding";
    EXPECT_EQ(to_vector(p), Values(5, 1)) << "rounded back";
    EXPECT_EQ(p.dtype(), dtype);
    p.set_grad(full({5}, 64).to(dtype));
    probe.step();
    EXPECT_EQ(to_vector(p), Values(5, 1 + 0x1p-6));
    EXPECT_EQ(probe.given[3].item<double>(), 2);
  }
}

TEST(CustomOptimizer, ComputesWithoutAutocastAndInTheParametersLayout) {
  const Tensor p = rand({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last).requires_grad_();
  Probe probe({p});
  p.set_grad(rand({2, 3, 4, 5}));
  const Autocast autocast(bfloat16);
  probe.step();
  for (std::size_t k = 0; k < 3; ++k) EXPECT_TRUE(probe.given[k].strides() == p.strides()) << k;
}

TEST(CustomOptimizer, TheTableOfOptionsServesChecksSchedulesAndSaving) {
  const auto p = start();
  Amsgrad amsgrad({Amsgrad::Group{{p[0]}, {.lr = 0.2, .beta1 = 0.5}},
                   Amsgrad::Group{{p[1]}, {.lr = 0.1, .bias_correction = false}}});
  Scheduler scheduler(amsgrad, [](std::int64_t step) { return step == 0 ? 1.0 : 0.5; });
  scheduler.step();
  amsgrad.set_momentum(0.25);
  EXPECT_EQ(amsgrad.options(0).lr, 0.1);
  EXPECT_EQ(amsgrad.options(1).lr, 0.05);
  EXPECT_EQ(amsgrad.options(1).beta1, 0.25);
  EXPECT_THROW(amsgrad.set_momentum(1), ValueError);
  EXPECT_EQ(amsgrad.options(0).beta1, 0.25);
  EXPECT_THROW(Amsgrad(p, {.beta2 = 1}), ValueError);
  EXPECT_THROW(Amsgrad(p, {.eps = -1}), ValueError);
  EXPECT_THROW(Amsgrad(p, {.lr = std::nan("")}), ValueError);

  OptimizerState state = amsgrad.state_dict();
  EXPECT_EQ(state.metadata.at("group.1.bias_correction"), "0");
  state.metadata["group.0.eps"] = "0.125";
  amsgrad.load_state_dict(state);
  EXPECT_EQ(amsgrad.options(0).eps, 0.125);
  state.metadata["group.1.beta2"] = "1";
  state.metadata["group.0.eps"] = "0.5";
  EXPECT_THROW(amsgrad.load_state_dict(state), CheckpointError);
  EXPECT_EQ(amsgrad.options(0).eps, 0.125) << "nothing has changed";

  Probe probe({p[0]});
  EXPECT_THROW(probe.momentum(), ValueError) << "it has neither momentum nor beta1";
  struct NoRate {
    double strength = 1;
  };
  struct Plain : optim::OptimizerWith<NoRate> {
    explicit Plain(const Tensor& parameter)
        : OptimizerWith({.name = "Plain", .options = {{"strength", &NoRate::strength}}},
                        {Group{{parameter}, {}}}) {}
  } plain(p[0]);
  EXPECT_THROW(plain.learning_rate(), ValueError);
  give_gradients(p, 0);
  EXPECT_THROW(plain.step(), Error) << "it overrides neither update_one() nor update_group()";
}

TEST(CustomOptimizer, ResumesWithEqualBits) {
  EXPECT_TRUE(learns_and_resumes<Amsgrad>("Amsgrad", {.lr = 1e-2}));
}

}  // namespace
}  // namespace tutti
