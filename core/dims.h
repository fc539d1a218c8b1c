// Dims is a short list of 64-bit integers: a shape, strides, or a list of dimensions. This header
// also has the arithmetic on shapes that every layer of the library uses: counting, broadcasting,
// strides. It knows nothing of tensors.
#pragma once

#include "error.h"

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace tutti {

/// Dims holds at most `max_rank` integers inline, without heap allocation. Strides count elements,
/// not bytes.
class Dims {
 public:
  static constexpr int max_rank = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) { assign(values.begin(), values.end()); }
  Dims(const std::vector<std::int64_t>& values) { assign(values.begin(), values.end()); }
  /// A single number needs no braces: sum(x, 1), zeros(8), .kernel = 3.
  template <std::integral I>
  requires(!std::same_as<I, bool>) Dims(I only) : Dims{static_cast<std::int64_t>(only)} {}
  template <class It>
  Dims(It first, It last) {
    assign(first, last);
  }
  /// Returns `rank` copies of `value`.
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

/// The sizes of the dimensions of a tensor.
using Shape = Dims;
/// The distances, in elements, between neighbours along each dimension.
using Strides = Dims;

/// MemoryFormat says how the dimensions of an activation (N, C, ...) are laid out in memory.
/// `channels_last` makes C the innermost dimension: NHWC, NDHWC.
enum class MemoryFormat { contiguous, channels_last };

/// Returns the list as "(8, 3, 32, 32)".
std::string to_string(const Dims& dims);
/// Returns "contiguous" or "channels_last".
std::string to_string(MemoryFormat format);

/// Returns the number of elements of a shape. Throws a ShapeError for a negative size or a product
/// beyond 64 bits.
std::int64_t numel(const Shape& shape);

/// Returns the strides of a dense tensor. Below rank 3 both formats have the same.
Strides dense_strides(const Shape& shape, MemoryFormat format = MemoryFormat::contiguous);

/// Returns how many elements of memory a view spans, from its first to its last element with the
/// gaps between them; 0 for an empty shape. Throws a ShapeError if that overflows 64 bits.
std::int64_t spanned_elements(const Shape& shape, const Strides& strides);

/// Turns a dimension that may be negative into 0..rank-1. Throws a ShapeError that names `op` if it
/// is out of range.
int normalize_dim(std::int64_t dim, int rank, const char* op);

/// Returns the shape that two shapes broadcast to, by NumPy's rule. Throws a ShapeError that names
/// `op` if they do not broadcast.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);

/// Returns the product of the sizes of the dimensions first..last-1.
std::int64_t product(const Dims& dims, int first, int last);

}  // namespace tutti
