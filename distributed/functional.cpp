#include "functional.h"

#include "../autograd/functions.h"
#include "../autograd/record.h"

#include <utility>

namespace tutti::distributed {
namespace {

void check(Operation operation, const Tensor& x, const ProcessGroup& group, ReduceOp op) {
  const char* const function = to_string(operation);
  if (!is_floating(x.dtype()))
    fail<DTypeError>("{}: expected a floating dtype, got {}; ProcessGroup::{}() takes any dtype",
                     function, to_string(x.dtype()), function);
  if (op != ReduceOp::sum && op != ReduceOp::mean)
    fail<ValueError>(
        "{}: expected the reduction sum or mean, which have a gradient, got {}; "
        "ProcessGroup::{}() offers it without a gradient",
        function, to_string(op), function);
  if (operation == Operation::reduce_scatter && (x.rank() < 1 || x.size(0) != group.size()))
    fail<ShapeError>("{}: expected a tensor of shape ({}, ...), one row for each rank, got {}",
                     function, group.size(), to_string(x.shape()));
}

// Runs one collective into a new row-major tensor. While it travels, the backward computes the
// gradients that other operations have deferred.
Tensor run(Operation operation, const Tensor& x, const ProcessGroup& group, ReduceOp op,
           const CallOptions& options) {
  Shape shape = x.shape();
  if (operation == Operation::all_gather) shape.insert(0, group.size());
  if (operation == Operation::reduce_scatter) shape.erase(0);
  const Tensor input = x.detach(), result = empty(shape, {x.dtype(), x.device()});
  if (operation == Operation::all_reduce) result.copy_(input);
  Work work = operation == Operation::all_reduce ? group.all_reduce(result, op, options)
              : operation == Operation::all_gather
                  ? group.all_gather(input, result, options)
                  : group.reduce_scatter(input, result, op, options);
  autograd::compute_deferred_gradients();
  work.wait();
  return result;
}

// Returns the collective that computes the gradient of another one.
Operation opposite_of(Operation operation) {
  if (operation == Operation::all_reduce) return operation;
  return operation == Operation::all_gather ? Operation::reduce_scatter : Operation::all_gather;
}

Tensor run_differentiably(Operation operation, const Tensor& x, const ProcessGroup& group,
                          ReduceOp op, CallOptions call) {
  const char* const function = to_string(operation);
  group.check_together(function, [&] { check(operation, x, group, op); });
  if (call.name.empty()) call.name = std::string("differentiable ") + function;
  const Tensor result = run(operation, x, group, op, call);
  call.name += " backward";
  autograd::record(function, result, {x}, [=](const Tensor& gradient) {
    const Tensor all = run(opposite_of(operation), gradient, group, op, call);
    const bool divides = operation == Operation::reduce_scatter && op == ReduceOp::mean;
    return divides ? all * (1.0 / group.size()) : all;
  });
  autograd::mark_waits_for_ranks(result, group.implementation().get());
  return result;
}

}  // namespace

Tensor all_reduce(const Tensor& x, const ProcessGroup& group, ReduceOp op,
                  const CallOptions& options) {
  return run_differentiably(Operation::all_reduce, x, group, op, options);
}

Tensor all_gather(const Tensor& x, const ProcessGroup& group, const CallOptions& options) {
  return run_differentiably(Operation::all_gather, x, group, ReduceOp::sum, options);
}

Tensor reduce_scatter(const Tensor& x, const ProcessGroup& group, ReduceOp op,
                      const CallOptions& options) {
  return run_differentiably(Operation::reduce_scatter, x, group, op, options);
}

}  // namespace tutti::distributed
