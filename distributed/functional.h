// Collectives as differentiable functions: they return new tensors, and gradients flow back through
// them to the inputs of all ranks. Layers whose result depends on other ranks' data are written
// with them. Collectives in place, without gradients, are members of ProcessGroup.
#pragma once

#include "process_group.h"

namespace tutti::distributed {

// The gradient of an input is that of the sum of all ranks' losses. Each function runs one
// collective in its forward and, where its input needs a gradient, one in its backward. Every rank
// of the group must call the function and run that backward, in the same order as its other
// collectives of the group. `options.name` names the call in errors. A tensor may be empty, as long
// as its shape is the same on every rank. Results are row-major.

/// Returns op over the ranks' tensors, to the same bits on every rank. `x` is floating and has the
/// same shape and dtype on every rank. `op` is sum or mean: ValueError for another one, which has
/// no gradient here. DTypeError for integers; DistributedError if a rank is missing or at another
/// call.
Tensor all_reduce(const Tensor& x, const ProcessGroup& group = world(), ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {});

/// Returns the tensors of all ranks, in the order of the ranks: shape (group.size(), x.shape...).
/// `x` has the same shape and dtype on every rank. Errors are those of all_reduce().
Tensor all_gather(const Tensor& x, const ProcessGroup& group = world(),
                  const CallOptions& options = {});

/// Returns op over the ranks' x[group.rank()]. `x` has the shape (group.size(), ...), the same on
/// every rank: ShapeError for another first size. Other errors are those of all_reduce().
Tensor reduce_scatter(const Tensor& x, const ProcessGroup& group = world(),
                      ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

}  // namespace tutti::distributed
