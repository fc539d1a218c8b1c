// This file lists losses, dropout and drop path.
#include "operation.h"
#include "reference.h"

#include <tutti/autograd/functions.h>
#include <tutti/nn/functional/dropout.h>
#include <tutti/nn/functional/loss.h>

namespace tutti::test {
namespace {

using reference::Total;

nn::LossReduction reduction_of(Total total) {
  return total == Total::mean  ? nn::LossReduction::mean
         : total == Total::sum ? nn::LossReduction::sum
                               : nn::LossReduction::none;
}

// Returns factors for the classes, or an undefined tensor.
Tensor weight_for(Draw& draw, std::int64_t count, DType dtype) {
  return draw.chance(0.5) ? Tensor()
                          : Draw({.dtype = dtype}).tensor({count}, Values::positive, dtype);
}

std::vector<Real> numbers_of(const Tensor& x) {
  if (!x.defined()) return {};
  const std::vector<double> values = to_vector(x);
  return {values.begin(), values.end()};
}

Operation cross_entropy(bool of_probabilities) {
  return {
      "nn::cross_entropy(const Tensor&, const Tensor&, const CrossEntropyOptions&)",
      [=](Draw& draw) {
        Shape shape = draw.shape(2);
        const std::int64_t classes = draw.pick(1, 9);
        shape[1] = classes;
        Shape positions = shape;
        positions.erase(1);
        const Tensor weight = weight_for(draw, classes, draw.dtype());
        const reference::CrossEntropy options{
            .reduction = static_cast<Total>(draw.pick(0, 2)),
            .ignored = of_probabilities || draw.chance(0.5) ? -100 : draw.pick(0, classes - 1),
            .smoothing = draw.chance(0.5) ? 0 : 0.25,
            .weight = numbers_of(weight)};
        return Trial{
            .inputs = {draw.tensor(shape), of_probabilities ? draw.tensor(shape, Values::positive)
                                                            : draw.indices(positions, classes)},
            .call =
                [=](const auto& in) {
                  return nn::cross_entropy(in[0], in[1],
                                           {.reduction = reduction_of(options.reduction),
                                            .ignore_index = options.ignored,
                                            .label_smoothing = options.smoothing,
                                            .weight = weight});
                },
            .reference =
                [=](const Arrays& in) { return reference::cross_entropy(in[0], in[1], options); },
            .options = fmt::format("reduction {} ignored {} smoothing {}{}",
                                   static_cast<int>(options.reduction), options.ignored,
                                   options.smoothing, weight.defined() ? " weighted" : ""),
            .dtype = accumulate_dtype(draw.dtype())};
      },
      {.gradient_roundings = 0}};
}

Operation mse() {
  return {
      "nn::mse_loss(const Tensor&, const Tensor&, LossReduction)",
      [](Draw& draw) {
        const Shape shape = draw.shape();
        const auto total = static_cast<Total>(draw.pick(0, 2));
        return Trial{
            .inputs = {draw.tensor(shape), draw.tensor(shape)},
            .call = [=](const auto& in) { return nn::mse_loss(in[0], in[1], reduction_of(total)); },
            .reference = [=](const Arrays& in) { return reference::mse(in[0], in[1], total); },
            .options = fmt::format("reduction {}", static_cast<int>(total)),
            .dtype = accumulate_dtype(draw.dtype())};
      },
      {.gradient_roundings = 0}};
}

Operation nll() {
  return {"nn::nll_loss(const Tensor&, const Tensor&, const NLLLossOptions&)",
          [](Draw& draw) {
            Shape shape = draw.shape(2);
            const std::int64_t classes = draw.pick(1, 9);
            shape[1] = classes;
            Shape positions = shape;
            positions.erase(1);
            const Tensor weight = weight_for(draw, classes, draw.dtype());
            const auto total = static_cast<Total>(draw.pick(0, 2));
            const std::int64_t ignored = draw.chance(0.5) ? -100 : draw.pick(0, classes - 1);
            return Trial{
                .inputs = {draw.tensor(shape), draw.indices(positions, classes)},
                .call =
                    [=](const auto& in) {
                      return nn::nll_loss(in[0], in[1],
                                          {.reduction = reduction_of(total),
                                           .ignore_index = ignored,
                                           .weight = weight});
                    },
                .reference =
                    [=, weights = numbers_of(weight)](const Arrays& in) {
                      return reference::nll(
                          in[0], in[1],
                          {.reduction = total, .ignored = ignored, .weight = weights});
                    },
                .options = fmt::format("reduction {} ignored {}{}", static_cast<int>(total),
                                       ignored, weight.defined() ? " weighted" : ""),
                .dtype = accumulate_dtype(draw.dtype())};
          },
          {.gradient_roundings = 0}};
}

Operation smooth_l1() {
  return {
      "nn::smooth_l1_loss(const Tensor&, const Tensor&, const SmoothL1Options&)",
      [](Draw& draw) {
        const Shape shape = draw.shape();
        const auto total = static_cast<Total>(draw.pick(0, 2));
        const double beta = 0.5 * static_cast<double>(draw.pick(0, 4));
        return Trial{
            .inputs = {draw.tensor(shape), draw.tensor(shape)},
            .call =
                [=](const auto& in) {
                  return nn::smooth_l1_loss(in[0], in[1],
                                            {.reduction = reduction_of(total), .beta = beta});
                },
            .reference =
                [=](const Arrays& in) { return reference::smooth_l1(in[0], in[1], beta, total); },
            .options = fmt::format("reduction {} beta {}", static_cast<int>(total), beta),
            .dtype = accumulate_dtype(draw.dtype())};
      },
      {.gradient_roundings = 0}};
}

Operation binary_cross_entropy() {
  return {"nn::binary_cross_entropy(const Tensor&, const Tensor&, LossReduction)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            const auto total = static_cast<Total>(draw.pick(0, 2));
            // Probabilities that stay away from 0 and 1, where logarithms are bounded.
            const Tensor probabilities = draw.layout(sigmoid(draw.tensor(shape) * 0.5));
            return Trial{.inputs = {probabilities, draw.tensor(shape)},
                         .call =
                             [=](const auto& in) {
                               return nn::binary_cross_entropy(in[0], in[1], reduction_of(total));
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return reference::binary_cross_entropy(in[0], in[1], total);
                             },
                         .options = fmt::format("reduction {}", static_cast<int>(total)),
                         .dtype = accumulate_dtype(draw.dtype())};
          },
          {.gradient_roundings = 0, .takes_infinite = false}};
}

Operation binary_cross_entropy_with_logits() {
  return {
      "nn::binary_cross_entropy_with_logits(const Tensor&, const Tensor&, const "
      "BinaryCrossEntropyOptions&)",
      [](Draw& draw) {
        const Shape shape = draw.shape();
        const auto total = static_cast<Total>(draw.pick(0, 2));
        const Tensor weight = shape.empty() ? Tensor()
                                            : weight_for(draw, shape.back(), draw.dtype());
        Array weights;
        if (weight.defined()) {
          weights = Array(weight.shape());
          const std::vector<Real> values = numbers_of(weight);
          weights.values.assign(values.begin(), values.end());
        }
        return Trial{
            .inputs = {draw.tensor(shape), draw.tensor(shape)},
            .call =
                [=](const auto& in) {
                  return nn::binary_cross_entropy_with_logits(
                      in[0], in[1], {.reduction = reduction_of(total), .pos_weight = weight});
                },
            .reference =
                [=](const Arrays& in) {
                  return reference::binary_cross_entropy_with_logits(in[0], in[1], weights, total);
                },
            .options = fmt::format("reduction {}{}", static_cast<int>(total),
                                   weight.defined() ? " weighted" : ""),
            .dtype = accumulate_dtype(draw.dtype())};
      },
      {.gradient_roundings = 0, .takes_infinite = false}};
}

Operation dropout() {
  return {"nn::dropout(const Tensor&, double, bool, Generator&)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            const double p = draw.chance(0.1) ? 1 : 0.25 * static_cast<double>(draw.pick(0, 3));
            const bool is_training = draw.chance(0.8);
            const auto seed = static_cast<std::uint64_t>(draw.pick(0, 1000000));
            return Trial{.inputs = {draw.tensor(shape)},
                         .call =
                             [=](const auto& in) {
                               Generator generator(seed);
                               return nn::dropout(in[0], p, is_training, generator);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               if (!is_training) return in[0];
                               Generator generator(seed);
                               std::vector<bool> is_kept;
                               for (std::size_t i = 0; i < in[0].values.size(); ++i)
                                 is_kept.push_back(p == 0 || generator.next() < (1 - p) * 0x1p32);
                               return reference::dropout(in[0], is_kept, p == 1 ? 0 : 1 / (1 - p));
                             },
                         .options = fmt::format("p {}{}", p, is_training ? "" : " evaluation")};
          },
          {.gradient_roundings = 1}};
}

Operation drop_path() {
  return {"nn::drop_path(const Tensor&, double, bool, Generator&)",
          [](Draw& draw) {
            const double p = draw.chance(0.1) ? 1 : 0.25 * static_cast<double>(draw.pick(0, 3));
            const bool is_training = draw.chance(0.8);
            const auto seed = static_cast<std::uint64_t>(draw.pick(0, 1000000));
            return Trial{.inputs = {draw.tensor(draw.shape(1))},
                         .call =
                             [=](const auto& in) {
                               Generator generator(seed);
                               return nn::drop_path(in[0], p, is_training, generator);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               if (!is_training) return in[0];
                               Generator generator(seed);
                               return reference::drop_path(in[0], p, generator);
                             },
                         .options = fmt::format("p {}{}", p, is_training ? "" : " evaluation")};
          },
          {.gradient_roundings = 1}};
}

}  // namespace

Family losses() {
  return {"losses",
          {cross_entropy(false), cross_entropy(true), nll(), mse(), smooth_l1(),
           binary_cross_entropy(), binary_cross_entropy_with_logits(), dropout(), drop_path()}};
}

}  // namespace tutti::test
