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

}  // namespace tutti::nn
