// The optimizers' kernels against their formulas in float64: random lists of parameters of all
// shapes, dense layouts and dtypes, skipped updates, clipping and unscaling. Tensors lie in guarded
// memory.
#include "guarded.h"
#include "tables.h"

#include "compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

namespace tutti::optimizer_test {
namespace {

using kernels::FusedUpdate;
using test::Guarded;
using test::relative_error;

using Values = std::vector<double>;

const kernels::Optimizer& table() { return test::optimizer(); }

double tolerance(DType dtype) {
  return dtype == float64 ? 1e-14 : dtype == float32 ? 5e-7 : dtype == float16 ? 6e-4 : 5e-3;
}

// Tensors of one list, in guarded memory: every dtype, ranks 0 to 4, some empty, some of more
// elements than a thread or a block takes at a time.
class Lists {
 public:
  explicit Lists(std::uint64_t seed) : random_(seed) {}

  Tensor values(const Shape& shape, DType dtype, const Dims& order = {}) {
    return guarded_(randn(shape, {float64}, random_).to(dtype), random_, order);
  }

  Shape shape(int index) {
    if (index == 3) return {0, 4};
    if (index == 5) return {test::emulated() ? 20000 : 40001};
    Shape result;
    for (std::int64_t rank = random_.below(5); rank > 0; --rank)
      result.push_back(1 + random_.below(7));
    return result;
  }

  std::vector<FusedUpdate> updates(int states) {
    std::vector<FusedUpdate> result;
    for (int i = 0; i < 200; ++i) {  // More of each dtype than one launch takes.
      const Shape s = shape(i);
      Dims order;
      for (const std::int64_t d : random_.permutation(s.size())) order.push_back(d);
      const DType dtype = of_index(i), wide = accumulate_dtype(dtype);
      FusedUpdate u{
          .parameter = values(s, dtype, order),
          .gradient = values(s, dtype, order),
          .steps = full({}, (i % 9 == 0 ? 0x1p24 : 0) + double(random_.below(5)), {int64})};
      for (int k = 0; k < states; ++k)
        u.states.push_back(guarded_(abs(randn(s, {float64}, random_)).to(wide), random_, order));
      if (random_.below(3) == 0) u.found_inf = full({}, random_.below(2) == 0 ? 0 : 1);
      result.push_back(u);
    }
    return result;
  }

  std::vector<Tensor> tensors() {
    std::vector<Tensor> result;
    for (int i = 0; i < 60; ++i) result.push_back(values(shape(i), of_index(i)));
    return result;
  }

  void expect_intact() const { guarded_.expect_intact(); }

 private:
  static DType of_index(int i) {
    return std::vector{float32, float64, bfloat16, float16}[static_cast<std::size_t>(i % 4)];
  }

  Generator random_;
  Guarded guarded_;
};

// The values of one parameter and its states, in float64.
struct Numbers {
  Values p, g;
  std::vector<Values> states;

  explicit Numbers(const FusedUpdate& u) : p(to_vector(u.parameter)), g(to_vector(u.gradient)) {
    for (const Tensor& state : u.states) states.push_back(to_vector(state));
  }
};

// Collects results and expectations of all parameters of a dtype: single elements may cancel.
class Comparison {
 public:
  void add(const Tensor& tensor, const Values& expected, double bound) {
    const Values values = to_vector(tensor);
    auto& [got, wanted] = by_bound_[bound];
    got.insert(got.end(), values.begin(), values.end());
    wanted.insert(wanted.end(), expected.begin(), expected.end());
  }
  ~Comparison() {
    for (const auto& [bound, pair] : by_bound_)
      EXPECT_LE(relative_error(pair.first, pair.second), bound) << "of " << pair.first.size();
  }

 private:
  std::map<double, std::pair<Values, Values>> by_bound_;
};

// Runs `step` on a random list and compares it with `formula`, which changes the Numbers of the
// update with index k, whose number is given.
template <class Step, class Formula>
void check(Lists& lists, std::vector<FusedUpdate> updates, const Step& step,
           const Formula& formula) {
  std::vector<Numbers> numbers;
  std::vector<double> steps;
  for (const FusedUpdate& u : updates) {
    numbers.emplace_back(u);
    steps.push_back(u.steps.item<double>());
  }
  step(updates);
  Comparison comparison;
  for (std::size_t k = 0; k < updates.size(); ++k) {
    SCOPED_TRACE(k);
    const FusedUpdate& u = updates[k];
    Numbers& expected = numbers[k];
    if (u.found_inf.defined() && u.found_inf.item<double>() != 0) {
      EXPECT_EQ(to_vector(u.parameter), expected.p);
      for (std::size_t s = 0; s < u.states.size(); ++s)
        EXPECT_EQ(to_vector(u.states[s]), expected.states[s]);
      EXPECT_EQ(u.steps.item<double>(), steps[k]);
      continue;
    }
    EXPECT_EQ(u.steps.item<double>(), steps[k] + 1);
    formula(expected, k, steps[k] + 1);
    const DType dtype = u.parameter.dtype();
    comparison.add(u.parameter, expected.p, tolerance(dtype));
    for (std::size_t s = 0; s < u.states.size(); ++s)
      comparison.add(u.states[s], expected.states[s], tolerance(accumulate_dtype(dtype)));
  }
  lists.expect_intact();
}

TEST(OptimizerKernels, SgdFollowsItsFormula) {
  for (const bool momentum : {false, true})
    for (const bool nesterov : {false, true}) {
      if (nesterov && !momentum) continue;
      Lists lists(801);
      const optim::SGD::Options o{.lr = 0.1,
                                  .momentum = momentum ? 0.9 : 0,
                                  .dampening = nesterov ? 0.0 : 0.2,
                                  .weight_decay = 0.03,
                                  .nesterov = nesterov};
      const kernels::SgdStep options{.lr = &o.lr,
                                     .momentum = &o.momentum,
                                     .dampening = &o.dampening,
                                     .weight_decay = &o.weight_decay,
                                     .nesterov = nesterov};
      check(
          lists, lists.updates(momentum ? 1 : 0),
          [&](const auto& updates) { table().sgd(options, updates); },
          [&](Numbers& n, std::size_t, double step) {
            for (std::size_t i = 0; i < n.p.size(); ++i) {
              const double g = n.g[i] + o.weight_decay * n.p[i];
              double direction = g;
              if (momentum) {
                double& b = n.states[0][i];
                b = step == 1 ? g : o.momentum * b + (1 - o.dampening) * g;
                direction = nesterov ? g + o.momentum * b : b;
              }
              n.p[i] -= o.lr * direction;
            }
          });
    }
}

TEST(OptimizerKernels, AdamFollowsItsFormula) {
  for (const bool decoupled : {false, true}) {
    Lists lists(802);
    const optim::Adam::Options o{
        .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1};
    const kernels::AdamStep options{.lr = &o.lr,
                                    .beta1 = &o.beta1,
                                    .beta2 = &o.beta2,
                                    .eps = &o.eps,
                                    .weight_decay = &o.weight_decay,
                                    .decoupled = decoupled};
    check(
        lists, lists.updates(2), [&](const auto& updates) { table().adam(options, updates); },
        [&](Numbers& n, std::size_t, double step) {
          for (std::size_t i = 0; i < n.p.size(); ++i) {
            double &m = n.states[0][i], &v = n.states[1][i];
            const double g = n.g[i] + (options.decoupled ? 0 : o.weight_decay * n.p[i]);
            m = o.beta1 * m + (1 - o.beta1) * g;
            v = o.beta2 * v + (1 - o.beta2) * g * g;
            const double m_hat = m / (1 - std::pow(o.beta1, step)),
                         v_hat = v / (1 - std::pow(o.beta2, step));
            if (options.decoupled) n.p[i] *= 1 - o.lr * o.weight_decay;
            n.p[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
          }
        });
  }
}

TEST(OptimizerKernels, LarsFollowsItsFormula) {
  for (const bool adapt : {false, true}) {
    Lists lists(803);
    const optim::LARS::Options o{
        .lr = 0.3, .momentum = 0.9, .weight_decay = 0.01, .trust_coefficient = 0.02, .eps = 1e-6};
    const kernels::LarsStep options{.lr = &o.lr,
                                    .momentum = &o.momentum,
                                    .weight_decay = &o.weight_decay,
                                    .trust_coefficient = &o.trust_coefficient,
                                    .eps = &o.eps,
                                    .adapt = adapt};
    const std::vector<FusedUpdate> updates = lists.updates(1);
    const auto count = static_cast<std::int64_t>(updates.size());
    Generator random(9);
    const Tensor squares = rand({2 * count}, {float64}, random);
    squares.select(0, 7).fill_(0);  // The local rate of these two is 1.
    squares.select(0, count + 8).fill_(0);
    const Values square = to_vector(squares);
    check(
        lists, updates, [&](const auto& list) { table().lars(options, list, squares); },
        [&](Numbers& n, std::size_t k, double) {
          const double weight = std::sqrt(square[k]), slope = std::sqrt(square[updates.size() + k]);
          const double local = adapt && weight > 0 && slope > 0
                                   ? o.trust_coefficient * weight /
                                         (slope + o.weight_decay * weight + o.eps)
                                   : 1;
          for (std::size_t i = 0; i < n.p.size(); ++i) {
            double& b = n.states[0][i];
            b = o.momentum * b + o.lr * local * (n.g[i] + o.weight_decay * n.p[i]);
            n.p[i] -= b;
          }
        });
  }
}

TEST(OptimizerKernels, SumsOfSquaresAndClipping) {
  Lists lists(804);
  const std::vector<Tensor> tensors = lists.tensors();
  const auto count = static_cast<std::int64_t>(tensors.size());
  const Tensor squares = test::poisoned({count}, float64);
  table().sums_of_squares(tensors, squares);
  Values expected;
  double total = 0;
  for (const Tensor& t : tensors) {
    expected.push_back(0);
    for (const double v : to_vector(t)) expected.back() += v * v;
    total += expected.back();
  }
  EXPECT_LE(relative_error(to_vector(squares), expected), 1e-13);

  for (const double max_norm : {2 * std::sqrt(total), std::sqrt(total) / 3}) {
    std::vector<Values> before;
    for (const Tensor& t : tensors) before.push_back(to_vector(t));
    const Tensor norm = test::poisoned({}, float64);
    table().clip(tensors, squares, max_norm, norm);
    EXPECT_NEAR(norm.item<double>(), std::sqrt(total), 1e-13 * std::sqrt(total));
    const double factor = std::min(1.0, max_norm / (std::sqrt(total) + 1e-6));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Values clipped = before[i];
      for (double& v : clipped) v *= factor;
      const double bound = factor == 1 ? 0 : tolerance(tensors[i].dtype());
      EXPECT_LE(relative_error(to_vector(tensors[i]), clipped), bound);
    }
  }
  lists.expect_intact();
}

TEST(OptimizerKernels, UnscalingDividesAndFindsWhatIsNotFinite) {
  for (const double poison : {0.0, double(INFINITY), -double(INFINITY), double(NAN)}) {
    Lists lists(805);
    std::vector<Tensor> tensors;
    for (const Tensor& t : lists.tensors())
      if (t.dtype() != float16) tensors.push_back(t);
    std::vector<Values> before;
    for (const Tensor& t : tensors) before.push_back(to_vector(t));
    const Tensor& last = tensors.back();
    if (poison != 0) last.flatten().select(0, last.numel() - 1).fill_(poison);
    const Tensor scale = scalar(8), found_inf = zeros({});
    table().unscale(tensors, scale, found_inf);
    EXPECT_EQ(found_inf.item<double>(), poison != 0);
    for (std::size_t i = 0; i + 1 < tensors.size(); ++i) {
      for (double& v : before[i]) v /= 8;  // A power of two: exact.
      EXPECT_EQ(to_vector(tensors[i]), before[i]);
    }
    table().unscale({}, scale, found_inf);
    EXPECT_EQ(found_inf.item<double>(), poison != 0) << "stays as it was";
    lists.expect_intact();
  }
}

// What the operations on single tensors compute: widened first, then multiplied and rounded once.
TEST(OptimizerKernels, ScalingIntoOtherTensorsGivesTheBitsOfSingleOperations) {
  for (const bool in_place : {false, true}) {
    Lists lists(808);
    Generator random(11);
    std::vector<Tensor> from, to;
    for (int i = 0; i < 250; ++i) {
      const DType dtype = i % 5 == 4 ? float64 : i % 5 == 3 ? bfloat16 : float32;
      const DType narrow = std::vector{float32, bfloat16, float16}[static_cast<std::size_t>(i % 3)];
      const Shape s = lists.shape(i);
      Dims order;
      for (const std::int64_t d : random.permutation(s.size())) order.push_back(d);
      from.push_back(lists.values(s, dtype == float32 && !in_place ? narrow : dtype, order));
      to.push_back(in_place ? from.back() : lists.values(s, dtype, order));
    }
    std::vector<Values> expected;
    for (std::size_t i = 0; i < to.size(); ++i)
      expected.push_back(to_vector(from[i].to(to[i].dtype()) * (1.0 / 3)));
    table().scale_into(from, to, 1.0 / 3);
    table().scale_into({}, {}, 1.0 / 3);
    for (std::size_t i = 0; i < to.size(); ++i) EXPECT_EQ(to_vector(to[i]), expected[i]) << i;
    lists.expect_intact();
  }
}

}  // namespace
}  // namespace tutti::optimizer_test
