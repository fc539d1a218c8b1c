// Tests of what all optimizers share: arguments, checks of every step, in-place updates, saving and
// loading.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/record.h>
#include <tutti/core/parallel.h>
#include <tutti/kernels/optimizer.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include "../distributed/messages.h"
#include "amsgrad.h"
#include "fixture.h"

#include <unistd.h>
#include <filesystem>
#include <limits>
#include <memory>

namespace tutti {
namespace {

using namespace optim;
using test::expect_error;

TEST(Optimizer, InvalidArguments) {
  const auto p = start();
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(SGD(p, {.lr = -1}), ValueError);
  EXPECT_THROW(SGD(p, {.lr = nan}), ValueError);
  EXPECT_THROW(SGD(p, {.lr = infinity}), ValueError);
  EXPECT_THROW(SGD(p, {.lr = 1, .momentum = -0.1}), ValueError);
  EXPECT_THROW(SGD(p, {.lr = 1, .weight_decay = -0.1}), ValueError);
  EXPECT_THROW(SGD(p, {.lr = 1, .nesterov = true}), ValueError);
  EXPECT_THROW(SGD(p, {.lr = 1, .momentum = 0.9, .dampening = 0.1, .nesterov = true}), ValueError);
  EXPECT_THROW(Adam(p, {.beta1 = 1}), ValueError);
  EXPECT_THROW(Adam(p, {.beta2 = -0.1}), ValueError);
  EXPECT_THROW(Adam(p, {.eps = -1}), ValueError);
  EXPECT_THROW(AdamW(p, {.weight_decay = -1}), ValueError);
  EXPECT_THROW(LARS(p, {.trust_coefficient = -1}), ValueError);
  EXPECT_THROW(SGD(std::vector<Tensor>{}, {}), ValueError);
  EXPECT_THROW(SGD({p[0], p[0]}, {}), ValueError);
  EXPECT_THROW(SGD(std::vector{Tensor()}, {}), ValueError);
  EXPECT_THROW(SGD({arange(3)}, {}), ValueError);
  EXPECT_THROW(SGD({p[0].detach().slice(1, 0, 4, 2)}, {}), ValueError);
}

TEST(Optimizer, ParametersThatShareMemoryAreRefused) {
  const Tensor whole = randn({6}), a = whole.slice(0, 0, 3).requires_grad_(),
               b = whole.slice(0, 3, 6).requires_grad_(), c = whole.slice(0, 2, 5).requires_grad_();
  const SGD apart({b, a}, {.lr = 0.1});  // parts of one block of memory are legal
  expect_error<ValueError>(
      [&] {
        SGD({b, a, c}, {.lr = 0.1});
      },
      {"SGD: parameters 1 and 2 share memory"});
  const Tensor same = a.detach().requires_grad_();
  expect_error<ValueError>([&] { SGD({a, same}, {.lr = 0.1}); }, {"0 and 1 share memory"});
}

TEST(Optimizer, LearningRateAndMomentumPerGroup) {
  const auto p = start();
  SGD sgd({SGD::Group{{p[0]}, {.lr = 0.2, .momentum = 0.5}}, SGD::Group{{p[1]}, {.lr = 0.03}}});
  EXPECT_EQ(sgd.group_count(), 2);
  EXPECT_EQ(sgd.learning_rate(1), 0.03);
  EXPECT_EQ(sgd.momentum(0), 0.5);
  sgd.set_learning_rate(1, 0.5);
  EXPECT_EQ(sgd.learning_rate(0), 0.2);
  EXPECT_EQ(sgd.learning_rate(1), 0.5);
  EXPECT_THROW(sgd.set_learning_rate(-0.5), ValueError);
  EXPECT_EQ(sgd.learning_rate(0), 0.2);
  EXPECT_THROW(sgd.learning_rate(2), ValueError);
  // The second group refuses the value that the first one accepts, so neither changes.
  SGD uneven({SGD::Group{{p[0]}, {.momentum = 0.5}},
              SGD::Group{{p[1]}, {.momentum = 0.9, .nesterov = true}}});
  EXPECT_THROW(uneven.set_momentum(0), ValueError);
  EXPECT_EQ(uneven.momentum(0), 0.5);
  EXPECT_EQ(uneven.momentum(1), 0.9);
  Adam adam(p, {.beta1 = 0.8});
  EXPECT_EQ(adam.momentum(), 0.8);
  adam.set_momentum(0.7);
  EXPECT_EQ(adam.momentum(), 0.7);
  EXPECT_THROW(adam.set_momentum(1), ValueError);
}

TEST(Optimizer, WithoutMomentumTheBufferOfEarlierStepsIsNotUsed) {
  const Tensor p = full({3}, 1).requires_grad_();
  SGD sgd({p}, {.lr = 0.5, .momentum = 0.9, .dampening = 0.5});
  p.set_grad(full({3}, 0.25));
  sgd.step();
  EXPECT_EQ(to_vector(p), std::vector<double>(3, 0.875));
  sgd.set_momentum(0);
  sgd.step();
  EXPECT_EQ(to_vector(p), std::vector<double>(3, 0.75));  // Dampening belongs to momentum.
}

TEST(Optimizer, ZeroGradClears) {
  const auto p = start();
  SGD sgd(p, {});
  give_gradients(p, 0);
  sgd.zero_grad();
  for (const Tensor& parameter : p) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Optimizer, AStepInvalidatesWhatWasSavedForBackward) {
  const Tensor x = full({3}, 2).requires_grad_();
  const autograd::Saved saved(x);
  SGD sgd({x}, {.lr = 0.5});
  x.set_grad(ones({3}));
  sgd.step();
  EXPECT_EQ(to_vector(x), (std::vector<double>{1.5, 1.5, 1.5}));
  EXPECT_THROW(saved.get(), Error);
}

TEST(Optimizer, ParametersMovedToAnotherLayoutKeepTheirState) {
  const Tensor a = rand({4, 3, 2, 2}).requires_grad_(), b = a.detach().clone().requires_grad_();
  SGD moved({a}, {.lr = 0.1, .momentum = 0.9}), stays({b}, {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 4; ++step) {
    const Tensor g = rand(a.shape());
    a.set_grad(g.clone());
    b.set_grad(g.clone());
    moved.step();
    stays.step();
    if (step == 1) a.set_data(a.detach().contiguous(MemoryFormat::channels_last));
  }
  EXPECT_EQ(to_vector(a), to_vector(b));
}

// Every method with states, on two parameters with gradients, after one step.
struct Stepped {
  std::vector<Tensor> p = {rand({3, 4}, {float32}).requires_grad_(),
                           rand({2, 6}, {float32}).requires_grad_()};
  std::unique_ptr<Optimizer> optimizer;

  template <class Method>
  explicit Stepped(Method* /*tag*/, typename Method::Options options)
      : optimizer(std::make_unique<Method>(p, options)) {
    give();
    optimizer->step();
  }
  void give() const {
    for (const Tensor& x : p) x.set_grad(ones(x.shape(), {x.dtype()}));
  }
  // Expects an E that names what is in `parts`, and that nothing has changed.
  template <class E>
  void expect_refused(const std::vector<std::string>& parts, const Tensor& found_inf = {}) const {
    const OptimizerState before = optimizer->state_dict();
    std::vector<std::vector<double>> values;
    for (const Tensor& x : p) values.push_back(to_vector(x));
    expect_error<E>([&] { optimizer->step(found_inf); }, parts);
    for (std::size_t k = 0; k < p.size(); ++k) EXPECT_EQ(to_vector(p[k]), values[k]);
    const OptimizerState after = optimizer->state_dict();
    ASSERT_EQ(after.tensors.size(), before.tensors.size());
    for (std::size_t i = 0; i < after.tensors.size(); ++i)
      EXPECT_EQ(to_vector(after.tensors[i].second), to_vector(before.tensors[i].second))
          << before.tensors[i].first;
  }
};

std::vector<Stepped> methods_with_states() {
  std::vector<Stepped> result;
  result.emplace_back(static_cast<SGD*>(nullptr), SGD::Options{.lr = 0.1, .momentum = 0.9});
  result.emplace_back(static_cast<Adam*>(nullptr), Adam::Options{.lr = 0.1});
  result.emplace_back(static_cast<AdamW*>(nullptr), AdamW::Options{.lr = 0.1});
  result.emplace_back(static_cast<LARS*>(nullptr), LARS::Options{.lr = 0.1});
  result.emplace_back(static_cast<Amsgrad*>(nullptr), Amsgrad::Options{.lr = 0.1});
  return result;
}

// The last parameter does not fit, so all others would have moved before it.
TEST(Optimizer, AParameterOfAnotherShapeIsRefusedBeforeAnythingChanges) {
  for (const Stepped& s : methods_with_states())
    for (const Shape& shape : {Shape{5, 7}, Shape{6, 2}, Shape{1}}) {
      s.p[1].set_data(ones(shape));
      s.give();
      s.expect_refused<ShapeError>({"parameter 1", "expected", to_string(shape), "(2, 6)"});
    }
}

TEST(Optimizer, AParameterOfAnotherDtypeIsRefusedBeforeAnythingChanges) {
  for (const Stepped& s : methods_with_states()) {
    s.p[1].set_data(s.p[1].detach().to(float64));
    s.give();
    s.expect_refused<DTypeError>({"parameter 1", "expected float64", "got float32"});
    s.p[1].set_data(s.p[1].detach().to(bfloat16));
    s.give();
    s.optimizer->step();  // Its state is float32, too.
  }
}

TEST(Optimizer, AParameterWithGapsInMemoryIsRefused) {
  for (const Stepped& s : methods_with_states()) {
    s.p[1].set_data(ones({2, 12}).slice(1, 0, 12, 2));
    s.give();
    s.expect_refused<ShapeError>({"parameter 1", "dense", "(12, 2)"});
  }
}

TEST(Optimizer, AGradientThatDoesNotFitIsRefused) {
  for (const Stepped& s : methods_with_states()) {
    s.give();
    autograd::meta_of(s.p[1]).grad = ones({6, 2});
    s.expect_refused<ShapeError>({"gradient of parameter 1", "(2, 6)", "(6, 2)"});
    autograd::meta_of(s.p[1]).grad = ones({2, 6}, {float64});
    s.expect_refused<DTypeError>({"gradient of parameter 1", "float32", "float64"});
  }
}

TEST(Optimizer, AWrongVerdictOfLossScalingIsRefused) {
  for (const Stepped& s : methods_with_states()) {
    s.give();
    s.expect_refused<ValueError>({"found_inf"}, zeros({2}));
    s.expect_refused<ValueError>({"found_inf"}, zeros({}, {float64}));
  }
}

TEST(Optimizer, WithoutStatesAParameterMayChangeItsShape) {
  const Tensor p = ones({3}).requires_grad_();
  SGD sgd({p}, {.lr = 0.5});
  p.set_grad(ones({3}));
  sgd.step();
  p.set_data(ones({2, 2}));
  p.set_grad(ones({2, 2}));
  sgd.step();
  EXPECT_EQ(to_vector(p), std::vector<double>(4, 0.5));
}

// PyTorch's reference implementations leave the rate alone where one of the norms is 0.
TEST(Optimizer, LarsDoesNotAdaptTheRateWhereANormIsZero) {
  const double lr = 0.5, decay = 0.25;
  const auto stepped = [&](double value, double gradient) {
    const Tensor p = full({3}, value).requires_grad_();
    LARS lars({p}, {.lr = lr, .momentum = 0, .weight_decay = decay, .trust_coefficient = 0.001});
    p.set_grad(full({3}, gradient));
    lars.step();
    return to_vector(p)[0];
  };
  EXPECT_DOUBLE_EQ(stepped(2, 0), 2 - lr * decay * 2);
  EXPECT_DOUBLE_EQ(stepped(0, 3), -lr * 3);
  EXPECT_NEAR(stepped(2, 3), 2 - 0.001 * 2 / (3 + decay * 2) * lr * (3 + decay * 2), 1e-5);
}

// A run that has diverged must not look healthy.
TEST(Optimizer, ANanGradientStaysInTheStateAndTheParameter) {
  const Tensor p = ones({3}).requires_grad_();
  Adam adam({p}, {.lr = 0.1});
  for (const double gradient : {1.0, std::nan(""), 1.0}) {
    p.set_grad(full({3}, gradient));
    adam.step();
    if (std::isnan(gradient)) p.set_data(ones({3}));  // what is left is in the state
  }
  EXPECT_TRUE(std::isnan(to_vector(p)[0]));
  for (const auto& [name, state] : adam.state_dict().tensors)
    EXPECT_EQ(std::isnan(to_vector(state)[0]), name != "steps") << name;
}

TEST(Optimizer, ClippingCountsAsAChangeInPlace) {
  const Tensor p = ones({3}).requires_grad_();
  p.set_grad(full({3}, 5));
  const auto version = [&] { return p.grad().storage()->version(); };
  const auto first = version();
  clip_grad_norm({p}, 0.5);
  EXPECT_GT(version(), first);
}

TEST(Optimizer, SixteenBitParametersKeepStateInFloat32) {
  for (const DType dtype : {bfloat16, float16}) {
    const Tensor p = full({40}, 1).to(dtype).requires_grad_();
    Adam adam({p}, {.lr = 0.25});
    p.set_grad(full({40}, 0.5).to(dtype));
    adam.step();
    EXPECT_EQ(to_vector(p), std::vector<double>(40, 0.75));
    for (const auto& [name, state] : adam.state_dict().tensors)
      EXPECT_EQ(state.dtype(), name == "steps" ? int64 : float32);
  }
}

TEST(Optimizer, LargeParametersDoNotDependOnTheThreadCount) {
  const auto run = [](int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    Generator generator(3);
    const Tensor p = randn({70001}, {}, generator).requires_grad_();
    LARS lars({p}, {.lr = 0.1, .weight_decay = 1e-3});
    for (int step = 0; step < 3; ++step) {
      p.set_grad(randn(p.shape(), {}, generator));
      lars.step();
    }
    set_num_threads(before);
    return to_vector(p);
  };
  EXPECT_EQ(run(1), run(3));
}

TEST(Optimizer, ResumesFromAFileAsIfNeverInterrupted) {
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("tutti_optim_{}.safetensors", ::getpid());
  const auto run = [&]<class Method>(typename Method::Options options) {
    const auto p = start(), q = start();
    Method whole(p, options), first(q, options);
    for (int step = 0; step < 7; ++step) {
      give_gradients(p, step);
      give_gradients(q, step);
      whole.step();
      first.step();
    }
    first.set_learning_rate(0.01234567890123);
    whole.set_learning_rate(0.01234567890123);
    const OptimizerState saved = first.state_dict();
    save_safetensors(file, saved.tensors, saved.metadata);
    OptimizerState loaded;
    loaded.tensors = load_safetensors(file, &loaded.metadata);
    Method second(q, {});
    second.load_state_dict(loaded);
    for (int step = 7; step < 14; ++step) {
      give_gradients(p, step);
      give_gradients(q, step);
      whole.step();
      second.step();
    }
    for (std::size_t k = 0; k < p.size(); ++k) EXPECT_EQ(to_vector(p[k]), to_vector(q[k]));
  };
  run.template operator()<SGD>({.lr = 0.1, .momentum = 0.9, .nesterov = true});
  run.template operator()<Adam>({.lr = 0.1});
  run.template operator()<AdamW>({.lr = 0.1});
  run.template operator()<LARS>({.lr = 0.1});
  std::filesystem::remove(file);
}

TEST(Optimizer, ALoadedStateForgetsTheStepsThatWereSkippedBefore) {
  const Tensor p = ones({3}).requires_grad_();
  Adam adam({p}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 1});
  const auto step = [&](double gradient) {
    p.set_grad(full({3}, gradient));
    scaler.step(adam);
    scaler.update();
  };
  step(1);
  step(1);
  const OptimizerState saved = adam.state_dict();
  step(std::numeric_limits<double>::infinity());
  adam.load_state_dict(saved);
  EXPECT_EQ(to_vector(adam.state_dict().tensors[0].second), (std::vector<double>{2}));
}

TEST(Optimizer, CountsAreExactWhereFloat32DoesNotCountEveryStep) {
  for (const Stepped& s : methods_with_states()) {
    OptimizerState state = s.optimizer->state_dict();
    state.tensors[0].second = tensor({0x1p24, 0x1p50}, {.dtype = int64});
    s.optimizer->load_state_dict(state);
    for (const double found_inf : {0, 1, 0, 0}) {
      s.give();
      s.optimizer->step(full({}, found_inf));
    }
    EXPECT_EQ(to_vector(s.optimizer->state_dict().tensors[0].second),
              (std::vector<double>{0x1p24 + 3, 0x1p50 + 3}));
  }
}

TEST(Optimizer, AStateThatDoesNotFitChangesNothing) {
  const auto p = start();
  Adam adam(p, {.lr = 0.5});
  give_gradients(p, 0);
  adam.step();
  const OptimizerState good = adam.state_dict();
  give_gradients(p, 1);
  adam.step();
  const OptimizerState before = adam.state_dict();
  const auto refuse = [&](auto spoil) {
    OptimizerState bad = good;
    spoil(bad);
    EXPECT_THROW(adam.load_state_dict(bad), CheckpointError);
    const OptimizerState after = adam.state_dict();
    EXPECT_EQ(after.metadata, before.metadata);
    ASSERT_EQ(after.tensors.size(), before.tensors.size());
    for (std::size_t i = 0; i < after.tensors.size(); ++i)
      EXPECT_EQ(to_vector(after.tensors[i].second), to_vector(before.tensors[i].second));
  };
  refuse([](OptimizerState& s) { s.metadata["optimizer"] = "SGD"; });
  refuse([](OptimizerState& s) { s.metadata.clear(); });
  refuse([](OptimizerState& s) { s.metadata["group.0.lr"] = "fast"; });
  refuse([](OptimizerState& s) { s.metadata["group.0.beta2"] = "2"; });
  refuse([](OptimizerState& s) { s.metadata.erase("group.0.eps"); });
  refuse([](OptimizerState& s) { s.metadata["group.0.parameters"] = "3"; });
  refuse([](OptimizerState& s) { s.tensors.erase(s.tensors.begin()); });
  refuse([](OptimizerState& s) { s.tensors[1].second = zeros({2, 2}, {.dtype = float64}); });
  refuse([](OptimizerState& s) { s.tensors[1].second = s.tensors[1].second.to(float32); });
  refuse([](OptimizerState& s) { s.tensors.emplace_back("7.first_moment", zeros({1})); });
  refuse([](OptimizerState& s) { s.tensors.pop_back(); });
  refuse([](OptimizerState& s) { s.tensors.resize(1); });
  refuse([](OptimizerState& s) { s.tensors[0].second = full({2}, -1, {.dtype = int64}); });
  refuse([](OptimizerState& s) { s.tensors[0].second = full({2}, 0x1p60, {.dtype = int64}); });
  refuse([](OptimizerState& s) { s.tensors[0].second = zeros({2}, {.dtype = int64}); });
  refuse([](OptimizerState& s) { s.tensors[0].second = Tensor(); });
  refuse([](OptimizerState& s) { s.tensors[1].second = Tensor(); });
  refuse([](OptimizerState& s) { s.tensors.push_back(s.tensors[1]); });
  refuse([](OptimizerState& s) {
    s.metadata["group.0.lr"] = "0.125";
    s.tensors.pop_back();
  });
  SGD sgd(p, {.lr = 0.5, .momentum = 0.5});
  for (const char* text : {"0.5", "2", "-1", "nan", ""}) {
    OptimizerState bad = sgd.state_dict();
    bad.metadata["group.0.nesterov"] = text;
    EXPECT_THROW(sgd.load_state_dict(bad), CheckpointError) << text;
    EXPECT_FALSE(sgd.options().nesterov);
  }
}

TEST(Optimizer, MomentumTurnedOnBetweenSavingAndTheNextStep) {
  // The state is saved after the last step without momentum, when momentum is already turned on.
  const auto p = start(), q = start();
  SGD whole(p, {.lr = 0.1, .dampening = 0.25}), first(q, {.lr = 0.1, .dampening = 0.25}),
      second(q, {});
  for (int step = 0; step < 3; ++step) {
    give_gradients(p, step);
    give_gradients(q, step);
    whole.step();
    (step == 0 ? first : second).step();
    whole.set_momentum(0.5 + 0.1 * step);
    first.set_momentum(0.5);
    if (step == 0) second.load_state_dict(first.state_dict());
    second.set_momentum(0.5 + 0.1 * step);
  }
  for (std::size_t k = 0; k < p.size(); ++k) EXPECT_EQ(to_vector(p[k]), to_vector(q[k]));

  OptimizerState bad = first.state_dict();
  bad.tensors.resize(1);
  EXPECT_THROW(second.load_state_dict(bad), CheckpointError);
  bad.metadata["group.0.momentum"] = "0";  // Needs no state.
  second.load_state_dict(bad);
  EXPECT_EQ(second.momentum(), 0);
}

}  // namespace
}  // namespace tutti
