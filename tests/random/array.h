// Array is a row-major array of Numbers, with the loops that the references of the operations are
// written in.
#pragma once

#include "number.h"

#include <tutti/core/tensor.h>

#include <functional>
#include <vector>

namespace tutti::test {

/// An array of Numbers in row-major order. One without a shape stands for an undefined tensor.
struct Array {
  Shape shape;
  std::vector<Number> values;

  Array() = default;
  /// Makes an array of zeros.
  explicit Array(const Shape& s);
  int rank() const { return shape.size(); }
  std::int64_t size(int d) const { return shape[d]; }
  const Number& at(const Dims& index) const { return values[position(index)]; }
  Number& at(const Dims& index) { return values[position(index)]; }

 private:
  std::size_t position(const Dims& index) const;
};

using Arrays = std::vector<Array>;

/// Calls body(index) for every index of a shape, in row-major order.
void for_each_index(const Shape& shape, const std::function<void(const Dims&)>& body);

/// Returns f(element) for every element.
Array map(const Array& x, const std::function<Number(const Number&)>& f);
/// Returns f(a, b) for every pair of elements; the shapes broadcast.
Array zip(const Array& a, const Array& b,
          const std::function<Number(const Number&, const Number&)>& f);
/// Returns an array of shape `shape` whose element at an index is that of x at `source(index)`.
Array gather(const Array& x, const Shape& shape, const std::function<Dims(const Dims&)>& source);
/// Returns x broadcast to `shape`.
Array broadcast_to(const Array& x, const Shape& shape);
/// Returns f(elements), the elements being those along `dims`; f sees them in row-major order.
Array reduce(const Array& x, const Dims& dims, bool keepdim,
             const std::function<Number(const std::vector<Number>&)>& f);
/// Returns the sum, added from the first number on.
Number sum_of(const std::vector<Number>& numbers);
/// Returns 0, 1, ..., rank - 1.
Dims all_dims(int rank);

}  // namespace tutti::test
