#include "array.h"

namespace tutti::test {

Array::Array(const Shape& s) : shape(s), values(static_cast<std::size_t>(numel(s))) {}

std::size_t Array::position(const Dims& index) const {
  std::int64_t result = 0;
  for (int d = 0; d < shape.size(); ++d) result = result * shape[d] + index[d];
  return static_cast<std::size_t>(result);
}

void for_each_index(const Shape& shape, const std::function<void(const Dims&)>& body) {
  Dims index = Dims::filled(shape.size(), 0);
  for (std::int64_t left = numel(shape); left > 0; --left) {
    body(index);
    for (int d = shape.size() - 1; d >= 0; --d) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

Array map(const Array& x, const std::function<Number(const Number&)>& f) {
  Array result = x;
  for (Number& value : result.values) value = f(value);
  return result;
}

Array gather(const Array& x, const Shape& shape, const std::function<Dims(const Dims&)>& source) {
  Array result(shape);
  for_each_index(shape, [&](const Dims& index) { result.at(index) = x.at(source(index)); });
  return result;
}

Array broadcast_to(const Array& x, const Shape& shape) {
  return gather(x, shape, [&](const Dims& index) {
    Dims source = Dims::filled(x.rank(), 0);
    for (int d = 0; d < x.rank(); ++d)
      if (x.shape[d] != 1) source[d] = index[d + shape.size() - x.rank()];
    return source;
  });
}

Array zip(const Array& a, const Array& b,
          const std::function<Number(const Number&, const Number&)>& f) {
  const Shape shape = broadcast_shapes(a.shape, b.shape, "reference");
  Array result = broadcast_to(a, shape);
  const Array other = broadcast_to(b, shape);
  for (std::size_t i = 0; i < result.values.size(); ++i)
    result.values[i] = f(result.values[i], other.values[i]);
  return result;
}

Array reduce(const Array& x, const Dims& dims, bool keepdim,
             const std::function<Number(const std::vector<Number>&)>& f) {
  Shape kept = x.shape, dropped;
  for (const std::int64_t d : dims) kept[static_cast<int>(d < 0 ? d + x.rank() : d)] = 1;
  std::vector<bool> is_reduced(static_cast<std::size_t>(x.rank()));
  for (const std::int64_t d : dims)
    is_reduced[static_cast<std::size_t>(d < 0 ? d + x.rank() : d)] = true;
  for (int d = 0; d < x.rank(); ++d)
    if (!is_reduced[static_cast<std::size_t>(d)]) dropped.push_back(x.shape[d]);
  const auto target = [&](const Dims& index) {
    Dims result = index;
    for (int d = 0; d < x.rank(); ++d)
      if (is_reduced[static_cast<std::size_t>(d)]) result[d] = 0;
    return result;
  };
  Array positions(kept), result(kept);
  for (std::size_t i = 0; i < positions.values.size(); ++i)
    positions.values[i] = static_cast<double>(i);
  std::vector<std::vector<Number>> groups(result.values.size());
  for_each_index(x.shape, [&](const Dims& index) {
    groups[static_cast<std::size_t>(positions.at(target(index)).value())].push_back(x.at(index));
  });
  for (std::size_t i = 0; i < groups.size(); ++i) result.values[i] = f(groups[i]);
  if (!keepdim) result.shape = dropped;
  return result;
}

Number sum_of(const std::vector<Number>& numbers) {
  Number total;
  for (const Number& number : numbers) total = total + number;
  return total;
}

Dims all_dims(int rank) {
  Dims dims;
  for (int d = 0; d < rank; ++d) dims.push_back(d);
  return dims;
}

}  // namespace tutti::test
