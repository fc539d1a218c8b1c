#include "draw.h"

#include "../kernels/random_layout.h"

#include <algorithm>
#include <limits>

namespace tutti::test {
namespace {

// Returns contiguous values.
Tensor values_of(const Shape& shape, Values values, DType dtype) {
  Generator& generator = default_generator();
  if (dtype == boolean) return randint(2, shape, {.dtype = boolean});
  if (dtype == uint8) return randint(7, shape, {.dtype = uint8});
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    const double x = generator.normal();
    numbers.push_back(dtype == int64               ? std::round(3 * x)
                      : values == Values::positive ? 0.1 + std::abs(x)
                      : values == Values::steps    ? std::round(2 * x) / 2
                                                   : x);
  }
  return tensor(numbers, shape, {.dtype = dtype});
}

}  // namespace

std::int64_t Draw::pick(std::int64_t low, std::int64_t high) const {
  return low + default_generator().below(high - low + 1);
}

std::int64_t Draw::batch(std::int64_t most) const {
  return empty_batch() || chance(0.03) ? 0 : pick(1, most);
}

Shape Draw::shape(int min_rank, int max_rank) const {
  const auto rank =
      static_cast<int>(pick(empty_batch() ? std::max(min_rank, 1) : min_rank, max_rank));
  Shape shape;
  for (int d = 0; d < rank; ++d) shape.push_back(chance(0.02) ? 0 : chance(0.15) ? 1 : pick(2, 6));
  if (rank > 0 && chance(0.15)) shape[static_cast<int>(pick(0, rank - 1))] = pick(30, 150);
  while (numel(shape) > 1500) *std::max_element(shape.begin(), shape.end()) /= 2;
  if (empty_batch()) shape[0] = 0;
  return shape;
}

Shape Draw::broadcastable(const Shape& shape) const {
  return test::broadcastable(shape, default_generator());
}

std::int64_t Draw::dim(int rank) const { return pick(0, rank - 1) - (chance(0.3) ? rank : 0); }

Dims Draw::dims(int rank) const {
  Dims dims;
  for (const std::int64_t d : default_generator().permutation(rank))
    if (chance(0.5)) dims.push_back(chance(0.3) ? d - rank : d);
  return dims;
}

Tensor Draw::tensor(const Shape& shape, Values values) const {
  return tensor(shape, values, options_.dtype);
}

Tensor Draw::tensor(const Shape& shape, Values values, DType dtype) const {
  if (!chance(0.1)) return layout(with_nonfinite(values_of(shape, values, dtype)));
  const Tensor small = values_of(broadcastable(shape), values, dtype);
  return layout(with_nonfinite(small)).expand(shape);
}

Tensor Draw::indices(const Shape& shape, std::int64_t bound) const {
  return layout(randint(bound, shape));
}

Tensor Draw::layout(const Tensor& x) const {
  const std::int64_t kind = pick(0, 9);
  if (kind < 4) return x.contiguous();
  if (kind < 6) return x.rank() < 3 ? x : x.contiguous(MemoryFormat::channels_last);
  return random_layout(x, default_generator());
}

Tensor Draw::with_nonfinite(const Tensor& x) const {
  if (!(options_.nan || options_.infinite) || !is_floating(x.dtype())) return x;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> special{0.0, -0.0};
  if (options_.nan) special.push_back(NAN);
  if (options_.infinite) special.insert(special.end(), {infinity, -infinity});
  std::vector<double> values = to_vector(x);
  const auto last = static_cast<std::int64_t>(special.size()) - 1;
  for (double& value : values)
    if (chance(0.06)) value = special[static_cast<std::size_t>(pick(0, last))];
  return tutti::tensor(values, x.shape(), {.dtype = x.dtype()});
}

}  // namespace tutti::test
