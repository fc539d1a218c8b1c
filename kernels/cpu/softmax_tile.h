// Tile computes softmax for many positions at a time: loops over them use whole vectors where the
// classes are few, as in segmentation, or far apart in memory. What is made of the probabilities is
// the caller's.
#pragma once

#include "../softmax_functions.h"

#include "dim_slices.h"
#include "tensor_iterator.h"
#include "vector_math.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

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
  /// Reads slices that begin at offset `k` of each position. Classes that are a power of two apart
  /// would push each other out of the cache if a slice were read as a whole.
  template <class T>
  void read(const auto& positions, std::size_t k, const T* from, std::int64_t stride) {
    for (std::int64_t i = 0; i < classes_; ++i)
      for (std::size_t lane = 0; lane < positions.size(); ++lane)
        at(i, lane) = convert<C>(from[positions[lane][k] + i * stride]);
  }
  /// Writes them.
  template <class T>
  void write(const auto& positions, std::size_t k, T* to, std::int64_t stride) {
    for (std::int64_t i = 0; i < classes_; ++i)
      for (std::size_t lane = 0; lane < positions.size(); ++lane)
        to[positions[lane][k] + i * stride] = convert<T>(at(i, lane));
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

/// Calls body(tile, positions) with the logits of up to Tile::lanes positions, which begin at the
/// first of their offsets, from several threads.
template <class C, int N, class T>
void for_each_tile(const DimSlices<N>& slices, const T* from, std::int64_t classes,
                   std::int64_t stride, const auto& body) {
  using Offsets = typename DimSlices<N>::Offsets;
  const std::int64_t grain = std::max(Tile<C>::lanes, 4096 / std::max<std::int64_t>(classes, 1));
  parallel_for(slices.count(), grain, [&](std::int64_t begin, std::int64_t end) {
    Tile<C> tile(classes);
    std::vector<Offsets> positions;
    for (; begin < end; begin += Tile<C>::lanes) {
      positions.clear();
      slices.for_each_in(begin, std::min(begin + Tile<C>::lanes, end),
                         [&](const Offsets& offsets) { positions.push_back(offsets); });
      tile.read(positions, 0, from, stride);
      tile.find_references();
      body(tile, positions);
    }
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
