// Tests of SGD, Adam, AdamW, LARS and gradient clipping against the results of PyTorch
// (tests/fixtures/make_optim.py).
#include <tutti/optim/adam.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include "fixture.h"

namespace tutti {
namespace {

using namespace optim;

template <class Method>
void check(const std::string& name, typename Method::Options options, bool skip = false) {
  const auto p = start();
  Method method(p, options);
  expect_trajectory(name, method, p, 1e-12, skip);
}

TEST(Trajectory, Sgd) {
  check<SGD>("sgd", {.lr = 0.1});
  check<SGD>("sgd_decay", {.lr = 0.1, .weight_decay = 0.05});
  check<SGD>("sgd_momentum", {.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01});
  check<SGD>("sgd_nesterov", {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
}

TEST(Trajectory, Adam) {
  check<Adam>("adam", {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95});
  check<Adam>("adam_decay", {.lr = 0.02, .eps = 1e-6, .weight_decay = 0.1});
  check<AdamW>("adamw", {.lr = 0.02, .weight_decay = 0.3});
}

TEST(Trajectory, LarsFollowsThePaper) {
  check<LARS>(
      "lars",
      {.lr = 0.5, .momentum = 0.9, .weight_decay = 0.01, .trust_coefficient = 0.02, .eps = 1e-9});
  check<LARS>("lars_plain", {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .adapt = false});
}

TEST(Trajectory, ParametersWithoutGradientAreSkippedAndTheirStateKept) {
  check<SGD>("sgd_skip", {.lr = 0.05, .momentum = 0.9}, true);
  check<Adam>("adam_skip", {.lr = 0.02}, true);
}

TEST(Trajectory, GroupsHaveTheirOwnOptions) {
  const auto p = start();
  SGD sgd({SGD::Group{{p[0]}, {.lr = 0.2, .momentum = 0.5}}, SGD::Group{{p[1]}, {.lr = 0.03}}});
  expect_trajectory("sgd_groups", sgd, p);
}

TEST(Trajectory, Float32) {
  const auto p = start(float32);
  SGD sgd(p, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  expect_trajectory("sgd_nesterov", sgd, p, 1e-6);
  const auto q = start(float32);
  Adam adam(q, {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95});
  expect_trajectory("adam", adam, q, 3e-6);
}

TEST(Trajectory, AnyDenseLayoutOfParameterAndGradient) {
  // Parameter 0 is stored transposed. Its gradient is row-major, and every third one is a view with
  // gaps.
  const auto p = start();
  const Tensor wide = empty({4, 3}, {.dtype = float64}), transposed = wide.transpose(0, 1).detach();
  transposed.copy_(p[0].detach());
  transposed.requires_grad_();
  ASSERT_FALSE(transposed.is_contiguous());
  Adam adam({transposed, p[1]}, {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95});
  for (std::int64_t step = 0; step < 24; ++step) {
    const Tensor g = fixture("grad.0").select(0, step).clone();
    const Tensor strided = full({3, 8}, 7, {.dtype = float64}).slice(1, 0, 8, 2);
    strided.copy_(g);
    transposed.set_grad(step % 3 ? g : strided);
    p[1].set_grad(fixture("grad.1").select(0, step).clone());
    adam.step();
    ASSERT_LT(test::relative_error(transposed.detach(), fixture("adam.0").select(0, step)), 1e-12)
        << "step " << step;
  }
}

TEST(Trajectory, ClippingByGlobalNorm) {
  for (const auto& [name, most] : {std::pair{"above", 1.0}, std::pair{"below", 1e3}}) {
    const auto p = start();
    give_gradients(p, 0);
    const Tensor norm = clip_grad_norm(p, most);
    const std::string prefix = std::string("clip.") + name + ".";
    EXPECT_NEAR(norm.item<double>(), fixture(prefix + "norm").item<double>(), 1e-12);
    for (std::size_t k = 0; k < 2; ++k)
      EXPECT_LT(test::relative_error(p[k].grad(), fixture(prefix + std::to_string(k))), 1e-13)
          << name;
  }
  const auto p = start();
  give_gradients(p, 0);
  const auto before = to_vector(p[0].grad());
  clip_grad_norm(p, 1e3);
  EXPECT_EQ(to_vector(p[0].grad()), before);
  EXPECT_EQ(clip_grad_norm({zeros({2}).requires_grad_()}, 1).item<double>(), 0);
  EXPECT_THROW(clip_grad_norm(p, 0), ValueError);
  EXPECT_THROW(clip_grad_norm(p, std::nan("")), ValueError);
}

}  // namespace
}  // namespace tutti
