// Batch, layer and group normalisation.
#include "operation.h"
#include "reference.h"

#include <tutti/autograd/functions.h>
#include <tutti/nn/batch_norm/functional.h>
#include <tutti/nn/functional/group_norm.h>
#include <tutti/nn/functional/layer_norm.h>
#include <tutti/nn/group_norm.h>
#include <tutti/nn/layer_norm.h>

namespace tutti::test {
namespace {

// Parameters of normalisation are float32 or float64.
DType parameter_dtype(Draw& draw) {
  return draw.dtype() == float64 || draw.chance(0.2) ? float64 : float32;
}

// An input with at least two values in each channel, unless it is empty.
Shape batch_shape(Draw& draw) {
  Shape shape = draw.shape(2, 5);
  shape[1] = std::max<std::int64_t>(1, shape[1]);
  if (numel(shape) > 0 && numel(shape) == shape[1]) shape[0] = 2;
  return shape;
}

struct BatchNormTensors {
  Tensor weight, bias, residual, position_weights, mean, var;
};

BatchNormTensors draw_tensors(Draw& draw, const Shape& shape) {
  BatchNormTensors t;
  const DType dtype = parameter_dtype(draw);
  const Shape channels{shape[1]};
  const Draw finite({.dtype = dtype});
  if (draw.chance(0.8)) t.weight = finite.tensor(channels);
  if (draw.chance(0.8)) t.bias = finite.tensor(channels);
  if (draw.chance(0.4)) t.residual = draw.tensor(shape);
  if (draw.chance(0.3)) {
    t.mean = finite.tensor(channels).clone().contiguous();
    t.var = finite.tensor(channels, Values::positive).clone().contiguous();
  } else if (draw.chance(0.3)) {
    Shape positions = shape;
    positions.erase(1);
    if (draw.chance(0.5)) positions = {shape[0]};
    // Their sum in a channel must be above 1.
    t.position_weights = Draw({.dtype = float64}).tensor(positions, Values::positive) + 1;
  }
  return t;
}

Operation batch_norm() {
  return {"nn::batch_norm(const Tensor&, const BatchNormArgs&)",
          [](Draw& draw) {
            const Shape shape = batch_shape(draw);
            const BatchNormTensors t = draw_tensors(draw, shape);
            const bool relu = draw.chance(0.4), is_floor = draw.chance(0.2);
            return Trial{
                .inputs = {draw.tensor(shape), t.weight, t.bias, t.residual, t.position_weights,
                           t.mean, t.var},
                .call =
                    [=](const auto& in) {
                      nn::BatchNormArgs args;
                      args.weight = in[1];
                      args.bias = in[2];
                      args.residual = in[3];
                      args.position_weights = in[4].defined() ? in[4].detach() : in[4];
                      if (in[5].defined()) {
                        args.running.mean = in[5].detach();
                        args.running.var = in[6].detach();
                        args.use_batch_statistics = false;
                      }
                      args.eps.floor = is_floor;
                      args.relu = relu;
                      return nn::batch_norm(in[0], args);
                    },
                .reference =
                    [=](const Arrays& in) {
                      return reference::batch_norm(in[0], {.weight = in[1],
                                                           .bias = in[2],
                                                           .running_mean = in[5],
                                                           .running_var = in[6],
                                                           .residual = in[3],
                                                           .position_weights = in[4],
                                                           .eps_is_floor = is_floor,
                                                           .relu = relu});
                    },
                .options = fmt::format("{}{}", relu ? "relu " : "", is_floor ? "floor" : ""),
                .differentiable_inputs = 4};
          },
          {.gradient_roundings = 1, .takes_infinite = false, .nan_spread = NanSpread::channels}};
}

Operation layer_norm(bool is_layer) {
  return {is_layer
              ? "nn::LayerNorm"
              : "nn::layer_norm(const Tensor&, const Shape&, const Tensor&, const Tensor&, double)",
          [=](Draw& draw) {
            Shape shape = draw.shape(draw.empty_batch() ? 2 : 1);
            const auto dims = static_cast<int>(draw.pick(1, shape.size() - draw.empty_batch()));
            for (int d = shape.size() - dims; is_layer && d < shape.size(); ++d)
              shape[d] = std::max<std::int64_t>(1, shape[d]);  // the layer refuses sizes of 0
            const Shape normalized(shape.end() - dims, shape.end());
            const DType dtype = parameter_dtype(draw);
            const auto parameter = [&] {
              return draw.chance(0.7) ? draw.tensor(normalized, Values::normal, dtype) : Tensor();
            };
            return Trial{.inputs = {draw.tensor(shape), parameter(), parameter()},
                         .call =
                             [=](const auto& in) {
                               if (!is_layer)
                                 return nn::layer_norm(in[0], normalized, in[1], in[2]);
                               nn::LayerNorm layer({.shape = normalized});
                               layer.replace_tensor(layer.weight, in[1]),
                                   layer.replace_tensor(layer.bias, in[2]);
                               return layer(in[0]);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return reference::layer_norm(in[0], dims, in[1], in[2], 1e-5);
                             },
                         .options = to_string(normalized)};
          },
          {.gradient_roundings = 0, .takes_infinite = false}};
}

Operation group_norm(bool is_layer) {
  return {is_layer
              ? "nn::GroupNorm"
              : "nn::group_norm(const Tensor&, std::int64_t, const Tensor&, const Tensor&, double)",
          [=](Draw& draw) {
            Shape shape = draw.shape(2, 5);
            const std::int64_t groups = draw.pick(1, 4);
            shape[1] = groups * draw.pick(1, 4);
            const DType dtype = parameter_dtype(draw);
            const auto parameter = [&] {
              return draw.chance(0.7) ? draw.tensor({shape[1]}, Values::normal, dtype) : Tensor();
            };
            return Trial{.inputs = {draw.tensor(shape), parameter(), parameter()},
                         .call =
                             [=, channels = shape[1]](const auto& in) {
                               if (!is_layer) return nn::group_norm(in[0], groups, in[1], in[2]);
                               nn::GroupNorm layer({.groups = groups, .channels = channels});
                               layer.replace_tensor(layer.weight, in[1]),
                                   layer.replace_tensor(layer.bias, in[2]);
                               return layer(in[0]);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return reference::group_norm(in[0], groups, in[1], in[2], 1e-5);
                             },
                         .options = fmt::format("groups={}", groups)};
          },
          {.gradient_roundings = 2, .takes_infinite = false}};
}

}  // namespace

Family normalisation() {
  return {"normalisation",
          {batch_norm(), layer_norm(false), layer_norm(true), group_norm(false), group_norm(true)}};
}

}  // namespace tutti::test
