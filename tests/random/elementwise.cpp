// Functions of each element, given by their value and their derivative, and the layers of them.
#include "operation.h"

#include <tutti/autograd/functions.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/identity.h>

#include <cmath>

namespace tutti::test {
namespace {

using Function = Real (*)(Real);

Operation of_one(const std::string& name, Tensor (*call)(const Tensor&), Function value,
                 Function slope, Values values = Values::normal) {
  const auto reference = [=](const Number& x) {
    // The derivative is computed from rounded values, and may be a difference of larger ones.
    const Real s = slope(x.value());
    return Number::of(x, value(x.value()), {s, 2 * std::abs(s) + 1});
  };
  return {name + "(const Tensor&)",
          [=](Draw& draw) {
            return Trial{.inputs = {draw.tensor(draw.shape(), values)},
                         .call = [=](const auto& in) { return call(in[0]); },
                         .reference = [=](const Arrays& in) { return map(in[0], reference); }};
          },
          {.gradient_roundings = 4}};
}

// The layer that computes what a function does.
template <class Layer>
Operation layer_of(const Operation& function, const std::string& name) {
  return {"nn::" + name,
          [=](Draw& draw) {
            Trial trial = function.draw(draw);
            trial.call = [](const auto& in) { return Layer()(in[0]); };
            return trial;
          },
          function.traits};
}

Real sigmoid_of(Real x) { return 1 / (1 + std::exp(-x)); }
Real flat(Real) { return 0; }
Real sign_of(Real x) { return std::isnan(x) ? x : Real((x > 0) - (x < 0)); }

// A leaky ReLU, whose slope is drawn.
Operation leaky_relu(bool is_layer) {
  return {is_layer ? "nn::LeakyReLU" : "leaky_relu(const Tensor&, double)", [=](Draw& draw) {
            const double slope = static_cast<double>(draw.pick(-4, 8)) / 8;
            return Trial{.inputs = {draw.tensor(draw.shape())},
                         .call =
                             [=](const auto& in) {
                               return is_layer ? nn::LeakyReLU({.slope = slope})(in[0])
                                               : tutti::leaky_relu(in[0], slope);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return map(in[0], [=](const Number& x) {
                                 return x.value() > 0 ? x : x * Number(slope);
                               });
                             },
                         .options = fmt::format("slope {}", slope)};
          }};
}

}  // namespace

Family elementwise() {
  constexpr Values positive = Values::positive;
  const Operation tanh = of_one(
      "tanh", tutti::tanh, [](Real x) { return std::tanh(x); },
      [](Real x) { return 1 - std::tanh(x) * std::tanh(x); });
  const Operation sigmoid = of_one("sigmoid", tutti::sigmoid, sigmoid_of,
                                   [](Real x) { return sigmoid_of(x) * (1 - sigmoid_of(x)); });
  const Operation relu = of_one(
      "relu", tutti::relu, [](Real x) { return x <= 0 ? Real(0) : x; },
      [](Real x) { return x <= 0 ? Real(0) : Real(1); });
  return {
      "elementwise",
      {
          of_one(
              "abs", tutti::abs, [](Real x) { return std::abs(x); }, sign_of),
          of_one(
              "exp", tutti::exp, [](Real x) { return std::exp(x); },
              [](Real x) { return std::exp(x); }),
          of_one(
              "log", tutti::log, [](Real x) { return std::log(x); }, [](Real x) { return 1 / x; },
              positive),
          of_one(
              "sqrt", tutti::sqrt, [](Real x) { return std::sqrt(x); },
              [](Real x) { return 0.5 / std::sqrt(x); }, positive),
          of_one(
              "rsqrt", tutti::rsqrt, [](Real x) { return 1 / std::sqrt(x); },
              [](Real x) { return -0.5 / std::sqrt(x) / std::sqrt(x) / std::sqrt(x); }, positive),
          of_one(
              "square", tutti::square, [](Real x) { return x * x; }, [](Real x) { return 2 * x; }),
          of_one(
              "sin", tutti::sin, [](Real x) { return std::sin(x); },
              [](Real x) { return std::cos(x); }),
          of_one(
              "cos", tutti::cos, [](Real x) { return std::cos(x); },
              [](Real x) { return -std::sin(x); }),
          leaky_relu(false),
          leaky_relu(true),
          tanh,
          layer_of<nn::Tanh>(tanh, "Tanh"),
          sigmoid,
          layer_of<nn::Sigmoid>(sigmoid, "Sigmoid"),
          relu,
          layer_of<nn::ReLU>(relu, "ReLU"),
          layer_of<nn::Identity>(
              of_one(
                  "", {}, [](Real x) { return x; }, [](Real) { return Real(1); }),
              "Identity"),
          of_one("sign", tutti::sign, sign_of, flat),
          of_one(
              "floor", tutti::floor, [](Real x) { return std::floor(x); }, flat),
          of_one(
              "ceil", tutti::ceil, [](Real x) { return std::ceil(x); }, flat),
          of_one(
              "round", tutti::round, [](Real x) { return std::nearbyint(x); }, flat),
      }};
}

}  // namespace tutti::test
