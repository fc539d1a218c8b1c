#include "data_flow.h"

namespace tutti::distributed {

DataFlow::DataFlow(const Collective& call, int ranks)
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

Elements DataFlow::gives(int rank) const {
  if (operation_ == Operation::all_gather) return {rank * part_, (rank + 1) * part_};
  if (operation_ == Operation::broadcast && rank != root_) return {};
  return {0, count_};
}

Elements DataFlow::takes(int rank) const {
  if (operation_ == Operation::reduce_scatter) return {rank * part_, (rank + 1) * part_};
  if (operation_ == Operation::broadcast && rank == root_) return {};
  return {0, count_};
}

}  // namespace tutti::distributed
