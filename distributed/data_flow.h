// DataFlow: what the collective operations have in common: each is a vector that lies across the
// ranks, of which each rank gives some elements and takes some. Here is also how a rank computes
// what it takes on the CPU. Nothing here moves data between ranks; backends do.
//
// A reduction over ranks adds in rank order: ((x0 + x1) + x2) + ... Every backend that computes on
// the CPU uses it, so their results agree to the bit. float32 and wider types accumulate in their
// own type, 16-bit types in float32 with one rounding at the end. A NaN on any rank makes the
// result NaN, for min and max too. Ranks on several hosts are reduced host by host into partial
// results, which are float32 for 16-bit types and are merged afterwards.
#pragma once

#include "collective.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed {

/// Throws a DTypeError where `op` has no meaning for `dtype`: the mean of integers, the sum of
/// booleans.
void check_reducible(DType dtype, ReduceOp op, const char* operation);

/// A reduction over ranks in detail. Where the dtypes differ, one is float32 and the other one is a
/// 16-bit type.
struct RankReduction {
  DType input, output;
  ReduceOp op;
  int divisor = 1;  ///< A mean is the sum divided by this number.
};

/// Sets outputs[j][i] = op over r of inputs[r][i] for i < count, where there is one of the inputs
/// for each rank. An output may be one of the inputs.
void reduce_in_rank_order(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                          std::span<void* const> outputs, std::int64_t count);

/// Sets `partial`, in the accumulate_dtype(), to the reduction of some ranks' inputs. The partial
/// result of a mean is a sum.
void reduce_partially(DType dtype, ReduceOp op, std::span<const void* const> inputs, void* partial,
                      std::int64_t count);
/// Sets `output` to the result for `ranks` ranks, of which `partial` is the reduction. They may be
/// the same memory.
void finish_reduction(DType dtype, ReduceOp op, int ranks, const void* partial, void* output,
                      std::int64_t count);

/// Does what reduce_in_rank_order() does, for ranks on several hosts: in rank order inside each
/// host, then over the hosts in the order of a binomial tree, ((h0 + h1) + (h2 + h3)) + ... The
/// ranks of each host are listed in `hosts`.
void reduce_host_by_host(DType dtype, ReduceOp op, const std::vector<std::vector<int>>& hosts,
                         std::span<const void* const> inputs, std::span<void* const> outputs,
                         std::int64_t count);

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
        op_(call.op),
        root_(call.root),
        ranks_(ranks),
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

  /// Computes what a rank takes into `output`. given(r, offset) returns the address of what the
  /// rank r gives of that, which lies so many bytes behind the beginning of its input. What is
  /// reduced gets the bits of reduce_host_by_host().
  template <class Given>
  void compute(const std::vector<std::vector<int>>& hosts, int rank, void* output,
               const Given& given) const {
    const Elements taken = takes(rank);
    std::vector<const void*> inputs;
    for (int r = 0; r < ranks_; ++r) {
      const Elements part = gives(r) & taken;
      if (!reduces_ && part.count() == 0) continue;
      const void* const from = given(r, bytes(part.begin - gives(r).begin));
      if (reduces_) inputs.push_back(from);
      else
        std::memcpy(static_cast<char*>(output) + bytes(part.begin - taken.begin), from,
                    bytes(part.count()));
    }
    if (reduces_) reduce_host_by_host(dtype_, op_, hosts, inputs, {&output, 1}, taken.count());
  }

 private:
  Operation operation_;
  ReduceOp op_;
  int root_, ranks_;
  bool reduces_;
  DType dtype_;
  std::int64_t part_ = 0, count_ = 0;
};

}  // namespace tutti::distributed
