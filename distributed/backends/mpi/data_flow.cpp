#include "data_flow.h"

#include "../../reduce.h"
#include "library.h"

namespace tutti::distributed::mpi {
namespace {

// MPI leaves open what its minimum and maximum do with NaN. These keep it.
template <ReduceOp op>
void keep_nan(void* from, void* into, int* count, MPI_Datatype* type) {
  const void* const pair[] = {into, from};
  reduce_in_rank_order(*type == MPI_FLOAT ? float32 : float64, op, pair, {&into, 1}, *count);
}

template <ReduceOp op>
MPI_Op nan_keeping_op() {
  static const MPI_Op created = [] {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(keep_nan<op>, 1, &made), "MPI_Op_create");
    return made;
  }();
  return created;
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::float32: return MPI_FLOAT;
    case DType::float64: return MPI_DOUBLE;
    case DType::int64: return MPI_INT64_T;
    default: return MPI_UINT8_T;
  }
}

}  // namespace

DataFlow::DataFlow(const Collective& call, int ranks)
    : operation_(call.operation),
      root_(call.root),
      reduces_(call.operation == Operation::all_reduce ||
               call.operation == Operation::reduce_scatter),
      dtype_(reduces_ ? call.input.dtype() : uint8) {
  if (operation_ == Operation::barrier) return;
  const std::int64_t elements = reduces_ ? call.input.numel() : call.bytes();
  count_ = operation_ == Operation::all_gather ? elements * ranks : elements;
  slice_ = operation_ == Operation::all_gather ? elements : elements / ranks;
}

Elements DataFlow::gives(int rank) const {
  if (operation_ == Operation::all_gather) return {rank * slice_, (rank + 1) * slice_};
  if (operation_ == Operation::broadcast && rank != root_) return {};
  return {0, count_};
}

Elements DataFlow::takes(int rank) const {
  if (operation_ == Operation::reduce_scatter) return {rank * slice_, (rank + 1) * slice_};
  if (operation_ == Operation::broadcast && rank == root_) return {};
  return {0, count_};
}

PartialReduction partial_reduction(const DataFlow& flow, ReduceOp op) {
  // What no rank gives is zero, so the bits of all hosts are put together.
  if (!flow.reduces()) return {MPI_BYTE, MPI_BOR};
  const MPI_Datatype type = mpi_type(flow.partial_dtype());
  const bool floating = is_floating(flow.dtype());
  switch (op) {
    case ReduceOp::min: return {type, floating ? nan_keeping_op<ReduceOp::min>() : MPI_MIN};
    case ReduceOp::max: return {type, floating ? nan_keeping_op<ReduceOp::max>() : MPI_MAX};
    default: return {type, MPI_SUM};
  }
}

}  // namespace tutti::distributed::mpi
