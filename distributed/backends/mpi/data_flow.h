// DataFlow: a collective as a vector that lies across the ranks: which of its elements each rank
// gives, which it takes, and how what several ranks give is combined. All operations between hosts
// are carried out from this description.
#pragma once

#include "../../collective.h"

#include <mpi.h>

#include <algorithm>

namespace tutti::distributed::mpi {

/// Elements of a vector.
struct Elements {
  std::int64_t begin = 0, end = 0;

  std::int64_t count() const { return std::max<std::int64_t>(end - begin, 0); }
  Elements operator&(const Elements& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
};

class DataFlow {
 public:
  DataFlow(const Collective& call, int ranks);

  std::int64_t count() const { return count_; }  ///< Elements of the whole vector.
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

  Elements gives(int rank) const;
  Elements takes(int rank) const;

 private:
  Operation operation_;
  int root_;
  bool reduces_;
  DType dtype_;
  std::int64_t slice_ = 0, count_ = 0;  // in elements; a slice is one rank's part
};

/// The type and operation with which MPI reduces the partial results of the hosts.
struct PartialReduction {
  MPI_Datatype type;
  MPI_Op op;
};

PartialReduction partial_reduction(const DataFlow& flow, ReduceOp op);

}  // namespace tutti::distributed::mpi
