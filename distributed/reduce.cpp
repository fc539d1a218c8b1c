#include "reduce.h"

#include "../core/cpu_level.h"

namespace tutti::distributed {

using Reduction = void(DType, ReduceOp, std::span<const void* const>, std::span<void* const>,
                       std::int64_t);
TUTTI_CPU_LEVEL_FUNCTION(Reduction, reduce_in_rank_order)

void check_reducible(DType dtype, ReduceOp op, const char* operation) {
  if (op == ReduceOp::mean && !is_floating(dtype))
    fail<DTypeError>("{}: the mean of {} is not defined; convert with .to(float32) or use sum",
                     operation, tutti::to_string(dtype));
  if (op == ReduceOp::sum && dtype == boolean)
    fail<DTypeError>(
        "{}: the sum of bool is not defined; use max for 'any rank', min for 'every rank', or "
        ".to(int64) to count",
        operation);
}

void reduce_in_rank_order(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                          std::span<void* const> outputs, std::int64_t count) {
  reduce_in_rank_order_of_level()(dtype, op, inputs, outputs, count);
}

}  // namespace tutti::distributed
