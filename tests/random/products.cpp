// Matrix products, fully connected layers and look-ups in tables.
#include "operation.h"
#include "reference.h"

#include <tutti/autograd/matmul.h>
#include <tutti/nn/linear.h>

namespace tutti::test {
namespace {

Operation product(const Traits& traits) {
  return {"matmul(const Tensor&, const Tensor&)",
          [](Draw& draw) {
            const std::int64_t k = draw.chance(0.05) ? 0 : draw.pick(1, 9);
            const Shape batch = draw.shape(0, 2);
            const auto with = [](Shape shape, std::int64_t rows, std::int64_t columns) {
              shape.push_back(rows);
              shape.push_back(columns);
              return shape;
            };
            // An empty batch has no matrices, or matrices without rows.
            Shape a = with(draw.broadcastable(batch), draw.batch(9), k),
                  b = with(draw.broadcastable(batch), k, draw.pick(1, 9));
            if (!draw.empty_batch() && draw.chance(0.1)) a = {k};
            if (draw.chance(0.1)) b = {k};
            return Trial{
                .inputs = {draw.tensor(a), draw.tensor(b)},
                .call = [](const auto& in) { return matmul(in[0], in[1]); },
                .reference = [](const Arrays& in) { return reference::matmul(in[0], in[1]); }};
          },
          traits};
}

std::vector<Operation> products_of_matrices() {
  return {product({.dtypes = {float32, float64}, .gradient_roundings = 0}),
          // oneDNN 2 turns an infinity at the last of an odd number of columns into NaN.
          product({.dtypes = {bfloat16}, .gradient_roundings = 0, .takes_infinite = false})};
}

Operation linear(bool is_layer) {
  return {
      is_layer ? "nn::Linear" : "nn::linear(const Tensor&, const Tensor&, const Tensor&)",
      [=](Draw& draw) {
        Shape shape = draw.shape(draw.empty_batch() ? 2 : 1);
        const std::int64_t ins = draw.pick(1, 9), outs = draw.pick(1, 9);
        shape[shape.size() - 1] = ins;
        // In mixed precision the parameters are float32.
        const DType dtype = draw.dtype() == bfloat16 && draw.chance(0.5) ? float32 : draw.dtype();
        return Trial{
            .inputs = {draw.tensor(shape), draw.tensor({outs, ins}, Values::normal, dtype),
                       draw.chance(0.7) ? draw.tensor({outs}, Values::normal, dtype) : Tensor()},
            .call =
                [=](const auto& in) {
                  if (!is_layer) return nn::linear(in[0], in[1], in[2]);
                  nn::Linear layer({.in = ins, .out = outs});
                  layer.replace_tensor(layer.weight, in[1]),
                      layer.replace_tensor(layer.bias, in[2]);
                  return layer(in[0]);
                },
            .reference = [=](const Arrays& in) { return reference::linear(in[0], in[1], in[2]); },
            .options = "",
            // oneDNN rounds float32 parameters to the dtype of x.
            .more_roundings = dtype == draw.dtype() ? 0.0 : 1.0};
      },
      // The gradient of the weight is a sum over all rows, which an expanded input repeats up to a
      // hundred times, with the same rounding each time.
      {.gradient_roundings = 0, .error_growth = 4}};
}

}  // namespace

Family products() {
  Family family{"products", products_of_matrices()};
  family.operations.insert(family.operations.end(), {linear(false), linear(true)});
  return family;
}

}  // namespace tutti::test
