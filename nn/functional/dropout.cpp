#include "dropout.h"

#include "../../autograd/functions.h"
#include "../../autograd/operation.h"
#include "../../core/create.h"

namespace tutti::nn {

void expect_probability(const char* op, double p) {
  if (!(p >= 0 && p <= 1))
    fail<ValueError>("{}: expected a probability from 0 to 1, got {}", op, p);
}

Tensor dropout(const Tensor& x, double p, bool training, Generator& generator) {
  expect_probability("dropout", p);
  if (!training || p == 0) return x;
  autograd::expect_trainable("dropout", x);
  const Tensor kept = bernoulli(1 - p, x.shape(), {x.dtype(), x.device()}, generator);
  // The factor is not multiplied into the mask: rounded to 16 bits there, it would change the mean
  // of every layer.
  return x * kept.contiguous(x.memory_format()) * (p == 1 ? 0 : 1 / (1 - p));
}

Tensor drop_path(const Tensor& x, double p, bool training, Generator& generator) {
  expect_probability("drop_path", p);
  if (x.rank() == 0)
    fail<ShapeError>("drop_path: expected an input (N, ...) of samples, got shape ()");
  if (!training || p == 0) return x;
  autograd::expect_trainable("drop_path", x);
  Shape samples = Dims::filled(x.rank(), 1);
  samples[0] = x.size(0);
  const Tensor kept = bernoulli(1 - p, samples, {x.dtype(), x.device()}, generator);
  return x * kept * (p == 1 ? 0 : 1 / (1 - p));
}

}  // namespace tutti::nn
