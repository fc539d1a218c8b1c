// DataFlow: what the collective operations have in common: each is a vector that lies across the
// ranks, of which each rank gives some elements and takes some. It moves nothing; the backends that
// compute on the CPU do.
#pragma once

#include "collective.h"

#include <algorithm>

namespace tutti::distributed {

/// Elements of a vector.
struct Elements {
  std::int64_t begin = 0, end = 0;

  std::int64_t count() const { return std::max<std::int64_t>(end - begin, 0); }
  Elements operator&(const Elements& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
};

/// A collective as a vector that lies across the ranks: which of its elements each rank gives,
/// which it takes, and how what several ranks give is combined.
class DataFlow {
 public:
  DataFlow(const Collective& call, int ranks)
      : operation_(call.operation),
        root_(call.root),
        reduces_(call.operation == Operation::all_reduce ||
                 call.operation == Operation::reduce_scatter),
        dtype_(reduces_ ? call.input.dtype() : uint8) {
    if (operation_ == Operation::barrier) return;
    const std::int64_t elements = reduces_ ? call.input.numel() : call.bytes();
    count_ = operation_ == Operation::all_gather ? elements * ranks : elements;
    part_ = operation_ == Operation::reduce_scatter ? elements / ranks : elements;
  }

  std::int64_t count() const { return count_; }  ///< Elements of the whole vector.
  /// The most elements that one rank gives another one.
  std::int64_t part() const { return part_; }
  /// The dtype of what ranks give and take; bytes where nothing is computed.
  DType dtype() const { return dtype_; }
  /// The dtype of partial results, which travel between hosts.
  DType partial_dtype() const { return reduces_ ? accumulate_dtype(dtype_) : dtype_; }
  /// Returns whether elements are reduced over the ranks. Otherwise one rank gives each of them.
  bool reduces() const { return reduces_; }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(dtype_);
  }
  std::size_t partial_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(partial_dtype());
  }

  /// What lies in the input of a rank.
  Elements gives(int rank) const {
    if (operation_ == Operation::all_gather) return {rank * part_, (rank + 1) * part_};
    if (operation_ == Operation::broadcast && rank != root_) return {};
    return {0, count_};
  }
  /// What lies in the output of a rank.
  Elements takes(int rank) const {
    if (operation_ == Operation::reduce_scatter) return {rank * part_, (rank + 1) * part_};
    if (operation_ == Operation::broadcast && rank == root_) return {};
    return {0, count_};
  }

 private:
  Operation operation_;
  int root_;
  bool reduces_;
  DType dtype_;
  std::int64_t part_ = 0, count_ = 0;
};

}  // namespace tutti::distributed
