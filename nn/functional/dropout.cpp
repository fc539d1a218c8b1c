#include "dropout.h"

#include "../../autograd/functions.h"
#include "../../core/create.h"

namespace tutti::nn {

Tensor dropout(const Tensor& x, double p, bool training, Generator& generator) {
  if (!(p >= 0 && p <= 1))
    fail<ValueError>("dropout: expected a probability from 0 to 1, got {}", p);
  if (!training || p == 0) return x;
  const Tensor kept = bernoulli(1 - p, x.shape(), {x.dtype(), x.device()}, generator);
  // The factor is not multiplied into the mask: rounded to 16 bits there, it would change the mean
  // of every layer.
  return x * kept.contiguous(x.memory_format()) * (p == 1 ? 0 : 1 / (1 - p));
}

}  // namespace tutti::nn
