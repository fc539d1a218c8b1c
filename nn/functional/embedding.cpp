#include "embedding.h"

#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"

namespace tutti::nn {

Tensor embedding(const Tensor& indices, const Tensor& weight,
                 std::optional<std::int64_t> padding_idx) {
  if (weight.rank() != 2)
    fail<ShapeError>("embedding: expected a table (rows, width), got shape {}",
                     to_string(weight.shape()));
  if (indices.dtype() != int64)
    fail<DTypeError>("embedding: expected int64 indices, got {}; convert with .to(int64)",
                     to_string(indices.dtype()));
  if (indices.device() != weight.device())
    fail<DeviceError>("embedding: indices are on {}, the table on {}; move one with .to(device)",
                      to_string(indices.device()), to_string(weight.device()));
  if (padding_idx && (*padding_idx < 0 || *padding_idx >= weight.shape()[0]))
    fail<ValueError>("embedding: expected a padding_idx from 0 to {}, got {}",
                     weight.shape()[0] - 1, *padding_idx);
  if (indices.rank() == 0)
    return embedding(indices.reshape({1}), weight, padding_idx).reshape({weight.shape()[1]});
  Shape shape = indices.shape();
  shape.push_back(weight.shape()[1]);
  const Tensor out = empty(shape, {weight.dtype(), weight.device()});
  kernels::on(weight.device())
      .indexing.gather("embedding", kernels::row_elements(weight, shape), 0,
                       indices.detach().unsqueeze(-1).expand(shape), out);
  return autograd::record(
      "embedding", out, {weight},
      [i = autograd::Saved(indices), padding_idx, table = weight.shape(),
       dtype = weight.dtype()](const Tensor& g) {
        // The sums of the gradients of repeated indices are stored in float32 or wider.
        const Tensor gradient = zeros(table, {accumulate_dtype(dtype), g.device()});
        kernels::on(g.device()).indexing.add_rows(g, i, gradient);
        if (padding_idx) gradient.select(0, *padding_idx).zero_();
        return gradient.to(dtype);
      });
}

}  // namespace tutti::nn
