#include "dims.h"

#include <algorithm>

namespace tutti {

Dims Dims::filled(int rank, std::int64_t value) {
  Dims result;
  for (int i = 0; i < rank; ++i) result.push_back(value);
  return result;
}

void Dims::push_back(std::int64_t value) {
  if (size_ == max_rank)
    fail<ShapeError>("a tensor has at most {} dimensions; merge some with reshape", max_rank);
  values_[static_cast<std::size_t>(size_++)] = value;
}

void Dims::insert(int position, std::int64_t value) {
  push_back(value);
  std::rotate(begin() + position, end() - 1, end());
}

void Dims::erase(int position) {
  std::copy(begin() + position + 1, end(), begin() + position);
  --size_;
}

bool Dims::operator==(const Dims& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string to_string(const Dims& dims) {
  std::string text = "(";
  for (int i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + (dims.size() == 1 ? ",)" : ")");
}

std::string to_string(MemoryFormat format) {
  return format == MemoryFormat::contiguous ? "contiguous" : "channels_last";
}

std::int64_t numel(const Shape& shape) {
  std::int64_t count = 1;
  bool overflow = false;
  for (std::int64_t size : shape) {
    if (size < 0) fail<ShapeError>("shape {}: sizes must not be negative", to_string(shape));
    // A size of 0 counts as 1: if the product of the others overflows, the strides would, too.
    overflow |= __builtin_mul_overflow(count, std::max<std::int64_t>(size, 1), &count);
  }
  if (overflow)
    fail<ShapeError>("shape {}: the number of elements does not fit into 64 bits",
                     to_string(shape));
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? count : 0;
}

Strides dense_strides(const Shape& shape, MemoryFormat format) {
  Strides strides = Dims::filled(shape.size(), 1);
  std::int64_t step = 1;
  const bool channels_last = format == MemoryFormat::channels_last && shape.size() >= 3;
  if (channels_last) step = std::max<std::int64_t>(shape[1], 1);
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (channels_last && i == 1) continue;
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

std::int64_t spanned_elements(const Shape& shape, const Strides& strides) {
  std::int64_t count = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(count, step, &count))
      fail<ShapeError>("view of shape {} with strides {} overflows 64 bits", to_string(shape),
                       to_string(strides));
  }
  return count;
}

int normalize_dim(std::int64_t dim, int rank, const char* op) {
  const std::int64_t wrapped = dim < 0 ? dim + rank : dim;
  if (rank == 0) fail<ShapeError>("{}: a tensor of shape () has no dimension {}", op, dim);
  if (wrapped < 0 || wrapped >= rank)
    fail<ShapeError>("{}: dimension {} is outside a tensor of {} dimensions (expected {} to {})",
                     op, dim, rank, -rank, rank - 1);
  return static_cast<int>(wrapped);
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  if (a == b) return a;
  const int rank = std::max(a.size(), b.size());
  Shape result = Dims::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1,
                       y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1)
      fail<ShapeError>(
          "{}: shapes {} and {} do not broadcast: sizes {} and {} differ and neither is 1", op,
          to_string(a), to_string(b), x, y);
    result[rank - i] = x == 1 ? y : x;
  }
  return result;
}

std::int64_t product(const Dims& dims, int first, int last) {
  std::int64_t result = 1;
  for (int i = first; i < last; ++i) result *= dims[i];
  return result;
}

}  // namespace tutti
