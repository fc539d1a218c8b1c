// Losses, dropout and drop path, each as a function and as a layer with the same options.
#include "operation.h"
#include "reference.h"

#include <tutti/autograd/functions.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/functional/dropout.h>
#include <tutti/nn/loss.h>

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

Operation cross_entropy(bool of_probabilities, bool is_layer) {
  return {
      is_layer ? "nn::CrossEntropyLoss"
               : "nn::cross_entropy(const Tensor&, const Tensor&, const CrossEntropyOptions&)",
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
                  const nn::CrossEntropyOptions given{.reduction = reduction_of(options.reduction),
                                                      .ignore_index = options.ignored,
                                                      .label_smoothing = options.smoothing,
                                                      .weight = weight};
                  return is_layer ? nn::CrossEntropyLoss(given)(in[0], in[1])
                                  : nn::cross_entropy(in[0], in[1], given);
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

Operation mse(bool is_layer) {
  return {is_layer ? "nn::MSELoss" : "nn::mse_loss(const Tensor&, const Tensor&, LossReduction)",
          [=](Draw& draw) {
            const Shape shape = draw.shape();
            const auto total = static_cast<Total>(draw.pick(0, 2));
            return Trial{
                .inputs = {draw.tensor(shape), draw.tensor(shape)},
                .call =
                    [=, r = reduction_of(total)](const auto& in) {
                      return is_layer ? nn::MSELoss(nn::LossOptions{r})(in[0], in[1])
                                      : nn::mse_loss(in[0], in[1], r);
                    },
                .reference = [=](const Arrays& in) { return reference::mse(in[0], in[1], total); },
                .options = fmt::format("reduction {}", static_cast<int>(total)),
                .dtype = accumulate_dtype(draw.dtype())};
          },
          {.gradient_roundings = 0}};
}

Operation binary_cross_entropy_with_logits(bool is_layer) {
  return {is_layer ? "nn::BCEWithLogitsLoss"
                   : "nn::binary_cross_entropy_with_logits(const Tensor&, const Tensor&, const "
                     "BinaryCrossEntropyOptions&)",
          [=](Draw& draw) {
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
            return Trial{.inputs = {draw.tensor(shape), draw.tensor(shape)},
                         .call =
                             [=](const auto& in) {
                               const nn::BinaryCrossEntropyOptions options{
                                   .reduction = reduction_of(total), .pos_weight = weight};
                               return is_layer ? nn::BCEWithLogitsLoss(options)(in[0], in[1])
                                               : nn::binary_cross_entropy_with_logits(in[0], in[1],
                                                                                      options);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return reference::binary_cross_entropy_with_logits(in[0], in[1],
                                                                                  weights, total);
                             },
                         .options = fmt::format("reduction {}{}", static_cast<int>(total),
                                                weight.defined() ? " weighted" : ""),
                         .dtype = accumulate_dtype(draw.dtype())};
          },
          {.gradient_roundings = 0, .takes_infinite = false}};
}

Operation dropout(bool is_layer) {
  return {is_layer ? "nn::Dropout" : "nn::dropout(const Tensor&, double, bool, Generator&)",
          [=](Draw& draw) {
            const Shape shape = draw.shape();
            const double p = draw.chance(0.1) ? 1 : 0.25 * static_cast<double>(draw.pick(0, 3));
            const bool is_training = draw.chance(0.8);
            const auto seed = static_cast<std::uint64_t>(draw.pick(0, 1000000));
            return Trial{.inputs = {draw.tensor(shape)},
                         .call =
                             [=](const auto& in) {
                               Generator generator(seed);
                               if (!is_layer) return nn::dropout(in[0], p, is_training, generator);
                               manual_seed(seed);
                               nn::Dropout layer({.p = p});
                               layer.train(is_training);
                               return layer(in[0]);
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

}  // namespace

Family losses() {
  Family family{"losses", {cross_entropy(true, false)}};
  for (const bool is_layer : {false, true})
    for (const Operation& operation :
         {cross_entropy(false, is_layer), mse(is_layer), binary_cross_entropy_with_logits(is_layer),
          dropout(is_layer)})
      family.operations.push_back(operation);
  return family;
}

}  // namespace tutti::test
