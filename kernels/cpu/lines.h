// Walking the lines of tensors along one dimension: every position of the other dimensions, with
// the offset at which its line starts in each of several tensors of the same shape (apart from that
// dimension).
#pragma once

#include "../../core/parallel.h"
#include "../../core/tensor.h"

#include <algorithm>
#include <array>

namespace tutti::kernels::cpu {

template <int N>
class Lines {
 public:
  /// `shape` and `strides` without the dimension that is walked along.
  Lines(const Shape& shape, const std::array<Strides, N>& strides)
      : shape_(shape), strides_(strides) {}

  std::int64_t count() const { return product(shape_, 0, shape_.size()); }

  /// Calls body(offsets) for every line, in parallel; `work` is the number of elements that a line
  /// has.
  template <class Body>
  void run(std::int64_t work, Body&& body) const {
    parallel_for(count(), std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(work, 1)),
                 [&](std::int64_t begin, std::int64_t end) { run_range(begin, end, body); });
  }

  /// The same for lines [begin, end), on the calling thread.
  template <class Body>
  void run_range(std::int64_t begin, std::int64_t end, Body&& body) const {
    if (begin >= end) return;
    std::array<std::int64_t, N> at{};
    Dims index = Dims::filled(shape_.size(), 0);
    std::int64_t rest = begin;
    for (int d = shape_.size() - 1; d >= 0; --d) {
      index[d] = rest % shape_[d];
      rest /= shape_[d];
      for (std::size_t k = 0; k < N; ++k) at[k] += index[d] * strides_[k][d];
    }
    for (std::int64_t i = begin; i < end; ++i) {
      body(std::as_const(at));
      for (int d = shape_.size() - 1; d >= 0; --d) {
        for (std::size_t k = 0; k < N; ++k) at[k] += strides_[k][d];
        if (++index[d] < shape_[d]) break;
        for (std::size_t k = 0; k < N; ++k) at[k] -= index[d] * strides_[k][d];
        index[d] = 0;
      }
    }
  }

 private:
  Shape shape_;
  std::array<Strides, N> strides_;
};

inline Dims without(Dims dims, int dim) {
  dims.erase(dim);
  return dims;
}

}  // namespace tutti::kernels::cpu
