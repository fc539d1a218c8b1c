// The arithmetic of a reduction over ranks, in rank order: ((x0 + x1) + x2) + ... Every backend
// that computes on the CPU uses it, so their results agree to the bit. float32 and wider types
// accumulate in their own type, 16-bit types in float32 with one rounding at the end. A NaN on any
// rank makes the result NaN, for min and max too. Ranks on several hosts are reduced host by host
// into partial results, which are float32 for 16-bit types and are merged afterwards.
#pragma once

#include "collective.h"

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

/// Sets outputs[j][i] = op over r of inputs[r][i] for i < count. An output may be one of the
/// inputs.
void reduce_over_ranks(const RankReduction& how, std::span<const void* const> inputs,
                       std::span<void* const> outputs, std::int64_t count);

/// Does the same with all of the ranks' inputs, in one dtype.
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

}  // namespace tutti::distributed
