// Tile computes softmax for many positions at a time: loops over them use whole vectors where the
// classes are few, as in segmentation, or far apart in memory. What is made of the probabilities is
// the caller's.
#pragma once

#include "../softmax_functions.h"

#include "tensor_iterator.h"
#include "vector.h"
#include "vector_math.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

/// Transposes as many vectors as each of them has numbers: swaps the upper right and lower left
/// quarters of the square, then those of each quarter.
template <class V, std::size_t n, std::size_t half = n / 2>
[[gnu::always_inline]] inline void transpose(V (&rows)[n]) {
  [&]<std::size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    for (std::size_t upper = 0; upper < n; ++upper) {
      if (upper & half) continue;
      const V a = rows[upper], b = rows[upper + half];
      rows[upper] = __builtin_shufflevector(a, b, (i & half ? n + i - half : i)...);
      rows[upper + half] = __builtin_shufflevector(a, b, (i & half ? n + i : i + half)...);
    }
  }
  (std::make_index_sequence<n>{});
  if constexpr (half > 1) transpose<V, n, half / 2>(rows);
}

/// The logits of some positions side by side.
template <class C>
class Tile {
 public:
  static constexpr std::int64_t lanes = 64;

  explicit Tile(std::int64_t classes)
      : classes_(classes), values_(static_cast<std::size_t>(classes * lanes)) {}
  /// Returns whether a tile is faster than one slice after the other.
  static bool suits(std::int64_t classes, std::int64_t stride) {
    return classes <= (stride == 1 ? 64 : 256);
  }

  C& at(std::int64_t i, std::size_t lane) {
    return values_[static_cast<std::size_t>(i * lanes) + lane];
  }
  C reference(std::size_t lane) const { return references_[lane]; }
  double sum(std::size_t lane) const { return sums_[lane]; }
  /// Reads the logits of a block's positions; tensor 0 of the block is their first class. Classes
  /// that are a power of two apart would push each other out of the cache if a slice were read as a
  /// whole.
  template <class T>
  void read(const Block& block, const T* from, std::int64_t stride) {
    const std::int64_t step = block.stride[0], whole = lanes_of_squares<T>(block.count, stride);
    from += block.offset[0];
    for_each_square<T>(whole, [&](std::int64_t lane, std::int64_t i) {
      constexpr std::int64_t side = Vector<T>::width;
      typename Vector<T>::V rows[side];
      for (std::int64_t r = 0; r < side; ++r)
        rows[r] = Vector<T>::load(from + (lane + r) * step + i);
      transpose(rows);
      for (std::int64_t r = 0; r < side; ++r) Vector<T>::put(row(i + r) + lane, rows[r]);
    });
    for (std::int64_t i = 0; i < classes_; ++i)
      load_elements(from + whole * step + i * stride, step, row(i) + whole, block.count - whole);
  }
  /// Writes them to tensor k of the block.
  template <class T>
  void write(const Block& block, std::size_t k, T* to, std::int64_t stride) {
    const std::int64_t step = block.stride[k], whole = lanes_of_squares<T>(block.count, stride);
    to += block.offset[k];
    for_each_square<T>(whole, [&](std::int64_t lane, std::int64_t i) {
      constexpr std::int64_t side = Vector<T>::width;
      typename Vector<T>::V rows[side];
      for (std::int64_t r = 0; r < side; ++r) rows[r] = Vector<T>::get(row(i + r) + lane);
      transpose(rows);
      for (std::int64_t r = 0; r < side; ++r) Vector<T>::store(to + (lane + r) * step + i, rows[r]);
    });
    for (std::int64_t i = 0; i < classes_; ++i)
      store_elements(row(i) + whole, to + whole * step + i * stride, step, block.count - whole);
  }
  void fill(std::size_t lane, C value) {
    for (std::int64_t i = 0; i < classes_; ++i) at(i, lane) = value;
  }
  /// Finds the reference_logit() of each slice.
  void find_references() {
    references_.fill(-std::numeric_limits<C>::infinity());
    for_each_class([&](const C* values) { largest_of(values, references_.data()); });
    for (C& reference : references_) reference = reference_logit(reference);
  }
  /// Computes the sum of exp(x - reference) in each slice.
  void sum_exponentials() {
    sums_.fill(0);
    for_each_class([&](const C* values) { add(values, references_.data(), sums_.data()); });
  }
  /// Computes factors * (probability - subtracted) in place.
  void scale_probabilities(const C* log_sums, const C* factors, C subtracted) {
    for_each_class(
        [&](C* values) { scale(values, references_.data(), log_sums, factors, subtracted); });
  }

 private:
  C* row(std::int64_t i) { return values_.data() + i * lanes; }
  // Where the classes of a position are side by side, squares of as many positions as classes are
  // transposed in registers. Returns how many of `count` positions such squares cover.
  template <class T>
  std::int64_t lanes_of_squares(std::int64_t count, std::int64_t stride) const {
    constexpr std::int64_t side = Vector<T>::width;
    return stride == 1 && classes_ >= side ? count / side * side : 0;
  }
  // Calls body(first position, first class) for squares, of which the last ones overlap.
  template <class T>
  void for_each_square(std::int64_t positions, const auto& body) const {
    constexpr std::int64_t side = Vector<T>::width;
    for (std::int64_t lane = 0; lane < positions; lane += side)
      for (std::int64_t i = 0; i < classes_; i += side) body(lane, std::min(i, classes_ - side));
  }
  void for_each_class(const auto& body) {
    for (std::size_t first = 0; first < values_.size(); first += lanes)
      body(values_.data() + first);
  }
  static void largest_of(const C* values, C* largest) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      largest[lane] = larger_logit(values[lane], largest[lane]);
  }
  static void add(const C* values, const C* references, double* sums) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      sums[lane] += static_cast<double>(Math::exp(values[lane] - references[lane]));
  }
  static void scale(C* values, const C* references, const C* log_sums, const C* factors,
                    C subtracted) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      values[lane] =
          factors[lane] *
          (Math::exp(log_probability(values[lane], references[lane], log_sums[lane])) - subtracted);
  }

  std::int64_t classes_;
  std::vector<C> values_;  // a row of lanes for each class
  std::array<C, lanes> references_;
  std::array<double, lanes> sums_;
};

/// Calls body(tile, block) with the logits of up to Tile::lanes positions of a block at a time.
/// Tensor 0 of the block is the first class of the logits.
template <class C, class T>
void for_each_tile(const Block& all, const T* from, std::int64_t classes, std::int64_t stride,
                   const auto& body) {
  Tile<C> tile(classes);
  for (std::int64_t first = 0; first < all.count; first += Tile<C>::lanes) {
    Block block{.count = std::min(Tile<C>::lanes, all.count - first), .stride = all.stride};
    for (std::size_t k = 0; k < Block::max_tensors; ++k) block.offset[k] = all.at(k, first);
    tile.read(block, from, stride);
    tile.find_references();
    body(tile, block);
  }
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
