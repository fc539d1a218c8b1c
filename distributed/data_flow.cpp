#include "data_flow.h"

#include "../core/cpu_level.h"

namespace tutti::distributed {

// Sets outputs[j][i] = op over r of inputs[r][i] for i < count. An output may be one of the inputs.
using ReductionLoops = void(const RankReduction&, std::span<const void* const>,
                            std::span<void* const>, std::int64_t);
TUTTI_CPU_LEVEL_FUNCTION(ReductionLoops, reduce_over_ranks)

namespace {

// The operation on partial results: only the last step divides.
ReduceOp without_division(ReduceOp op) { return op == ReduceOp::mean ? ReduceOp::sum : op; }

}  // namespace

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
  reduce_over_ranks_of_level()({dtype, dtype, op, static_cast<int>(inputs.size())}, inputs, outputs,
                               count);
}

void reduce_partially(DType dtype, ReduceOp op, std::span<const void* const> inputs, void* partial,
                      std::int64_t count) {
  reduce_over_ranks_of_level()({dtype, accumulate_dtype(dtype), without_division(op)}, inputs,
                               {&partial, 1}, count);
}

void finish_reduction(DType dtype, ReduceOp op, int ranks, const void* partial, void* output,
                      std::int64_t count) {
  const bool changes = op == ReduceOp::mean || dtype != accumulate_dtype(dtype);
  if (!changes && partial == output) return;
  reduce_over_ranks_of_level()({accumulate_dtype(dtype), dtype, op, ranks}, {&partial, 1},
                               {&output, 1}, count);
}

void reduce_host_by_host(DType dtype, ReduceOp op, const std::vector<std::vector<int>>& hosts,
                         std::span<const void* const> inputs, std::span<void* const> outputs,
                         std::int64_t count) {
  if (hosts.size() == 1) return reduce_in_rank_order(dtype, op, inputs, outputs, count);
  const DType wide = accumulate_dtype(dtype);
  std::vector<std::vector<char>> partial(
      hosts.size(), std::vector<char>(static_cast<std::size_t>(count) * size_of(wide)));
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    std::vector<const void*> of_host;
    for (const int rank : hosts[h]) of_host.push_back(inputs[static_cast<std::size_t>(rank)]);
    reduce_partially(dtype, op, of_host, partial[h].data(), count);
  }
  for (std::size_t distance = 1; distance < hosts.size(); distance *= 2)
    for (std::size_t h = 0; h + distance < hosts.size(); h += 2 * distance) {
      const void* const pair[] = {partial[h].data(), partial[h + distance].data()};
      reduce_partially(wide, op, pair, partial[h].data(), count);
    }
  for (void* output : outputs)
    finish_reduction(dtype, op, static_cast<int>(inputs.size()), partial[0].data(), output, count);
}

}  // namespace tutti::distributed
