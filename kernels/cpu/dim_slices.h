// DimSlices visits the slices of tensors along one dimension: for every position of the other
// dimensions, the offset at which the slice starts in each of N tensors. The tensors have the same
// shape apart from that dimension.
#pragma once

#include "../../core/parallel.h"
#include "../../core/tensor.h"

#include <algorithm>
#include <array>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

template <int N>
class DimSlices {
 public:
  using Offsets = std::array<std::int64_t, N>;

  /// `shape` and `strides` lack the dimension of the slices (without_dim).
  DimSlices(const Shape& shape, const std::array<Strides, N>& strides)
      : shape_(shape), strides_(strides) {}

  std::int64_t count() const { return product(shape_, 0, shape_.size()); }

  /// Calls body(const Offsets&) for every slice, from several threads. `length` is the number of
  /// elements of a slice.
  template <class Body>
  void for_each(std::int64_t length, const Body& body) const {
    const std::int64_t grain = 4096 / std::max<std::int64_t>(length, 1);
    parallel_for(count(), grain,
                 [&](std::int64_t begin, std::int64_t end) { for_each_in(begin, end, body); });
  }

  /// Calls body(const Offsets&) for slices [begin, end) on the calling thread.
  template <class Body>
  void for_each_in(std::int64_t begin, std::int64_t end, const Body& body) const {
    if (begin >= end) return;
    Offsets offsets{};
    Dims index = Dims::filled(shape_.size(), 0);
    std::int64_t rest = begin;
    for (int d = shape_.size() - 1; d >= 0; --d) {
      index[d] = rest % shape_[d];
      rest /= shape_[d];
      for (std::size_t k = 0; k < N; ++k) offsets[k] += index[d] * strides_[k][d];
    }
    for (std::int64_t i = begin; i < end; ++i) {
      body(std::as_const(offsets));
      for (int d = shape_.size() - 1; d >= 0; --d) {
        for (std::size_t k = 0; k < N; ++k) offsets[k] += strides_[k][d];
        if (++index[d] < shape_[d]) break;
        for (std::size_t k = 0; k < N; ++k) offsets[k] -= index[d] * strides_[k][d];
        index[d] = 0;
      }
    }
  }

 private:
  Shape shape_;
  std::array<Strides, N> strides_;
};

/// A shape, or strides, without dimension `dim`.
inline Dims without_dim(Dims dims, int dim) {
  dims.erase(dim);
  return dims;
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
