// Dims: a short list of 64-bit integers held inline (shapes, strides, lists of dimensions), and the
// arithmetic on shapes that every layer of the library shares: counting, broadcasting, default
// strides.
#pragma once

#include "error.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace tutti {

/// At most `max_rank` integers, no heap allocation. Used as shape, as strides (in elements) and as
/// a list of dimensions.
class Dims {
 public:
  static constexpr int max_rank = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) { assign(values.begin(), values.end()); }
  Dims(const std::vector<std::int64_t>& values) { assign(values.begin(), values.end()); }
  template <class It>
  Dims(It first, It last) {
    assign(first, last);
  }
  /// `rank` copies of `value`.
  static Dims filled(int rank, std::int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t back() const { return values_[static_cast<std::size_t>(size_ - 1)]; }
  void push_back(std::int64_t value);
  void insert(int position, std::int64_t value);
  void erase(int position);

  bool operator==(const Dims& other) const;

 private:
  template <class It>
  void assign(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }
  std::array<std::int64_t, max_rank> values_{};
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

/// How the dimensions of an activation (N, C, ...) are laid out. `channels_last` puts C innermost:
/// NHWC, NDHWC.
enum class MemoryFormat { contiguous, channels_last };

std::string to_string(const Dims& dims);  ///< "(8, 3, 32, 32)"
std::string to_string(MemoryFormat format);

/// Number of elements; ShapeError for a negative size or a product beyond 64 bits.
std::int64_t numel(const Shape& shape);

/// Dense strides of a shape. Below rank 3 both formats are the same.
Strides dense_strides(const Shape& shape, MemoryFormat format = MemoryFormat::contiguous);

/// Turns a possibly negative dimension into 0..rank-1; ShapeError that names `op` where it is
/// outside.
int normalize_dim(std::int64_t dim, int rank, const char* op);

/// The shape two shapes broadcast to (NumPy's rule); ShapeError that names `op` where they do not.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);

/// The product of the sizes from dimension `first` up to, not including, `last`.
std::int64_t product(const Dims& dims, int first, int last);

}  // namespace tutti
