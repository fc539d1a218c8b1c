// Random shapes and memory layouts for fuzzing kernels against plain loops over row-major values.
#pragma once

#include <tutti/core/create.h>

#include <cmath>
#include <vector>

namespace tutti::test {

/// A shape of 0 to 4 dimensions with 0 to 7 entries, sometimes with a long one.
inline Shape random_shape(Generator& generator, int min_rank = 0) {
  Shape shape;
  const auto rank = min_rank + static_cast<int>(generator.below(5 - min_rank));
  for (int d = 0; d < rank; ++d) {
    const std::int64_t kind = generator.below(20);
    shape.push_back(kind == 0   ? 0
                    : kind == 1 ? 1200 + generator.below(100)
                    : kind < 5  ? 1
                                : 1 + generator.below(7));
  }
  if (numel(shape) > 20000)
    for (std::int64_t& size : shape) size = std::min<std::int64_t>(size, 13);
  return shape;
}

/// The values of `x` in memory with a random order of dimensions and random gaps.
inline Tensor random_layout(const Tensor& x, Generator& generator) {
  Dims order;
  for (const std::int64_t d : generator.permutation(x.rank())) order.push_back(d);
  Dims back = Dims::filled(x.rank(), 0), padded;
  Tensor view = x.permute(order);
  for (int i = 0; i < x.rank(); ++i) {
    back[static_cast<int>(order[i])] = i;
    padded.push_back(view.shape()[i] * (generator.below(3) == 0 ? 2 : 1) +
                     (generator.below(4) == 0 ? 1 : 0));
  }
  Tensor memory = empty(padded, {x.dtype()});
  memory.fill_(x.dtype() == boolean ? 1 : 77);
  for (int i = 0; i < x.rank(); ++i) {
    const std::int64_t size = view.shape()[i], step = size && padded[i] >= 2 * size ? 2 : 1;
    memory = memory.slice(i, padded[i] - size * step, padded[i], step);
  }
  memory.copy_(view);
  return memory.permute(back);
}

/// `shape` with some sizes replaced by 1 and some leading dimensions dropped: it broadcasts to
/// `shape`.
inline Shape broadcastable(const Shape& shape, Generator& generator) {
  Shape result;
  const auto dropped =
      static_cast<int>(generator.below(4) == 0 ? generator.below(shape.size() + 1) : 0);
  for (int d = dropped; d < shape.size(); ++d)
    result.push_back(generator.below(3) == 0 ? 1 : shape[d]);
  return result;
}

/// ||a - b|| / ||b||, equal NaN and infinities not counted; infinite where only one of two is NaN.
inline double finite_relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (std::isnan(a[i]) || std::isnan(b[i])) return INFINITY;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
  }
  for (const double v : b)
    if (std::isfinite(v)) norm += v * v;
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace tutti::test
