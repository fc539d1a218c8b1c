#include "functional.h"

#include "../autograd/functions.h"
#include "../autograd/record.h"
#include "submit.h"

#include <utility>

namespace tutti::distributed {
namespace {

void check(const char* function, const Tensor& x, ReduceOp op) {
  if (!is_floating(x.dtype()))
    fail<DTypeError>("{}: expected a floating dtype, got {}; ProcessGroup::{}() takes any dtype",
                     function, to_string(x.dtype()), function);
  if (op != ReduceOp::sum && op != ReduceOp::mean)
    fail<ValueError>(
        "{}: expected the reduction sum or mean, which have a gradient, got {}; "
        "ProcessGroup::{}() offers it without a gradient",
        function, to_string(op), function);
}

void check_rows(const char* function, const Tensor& x, const ProcessGroup& group) {
  if (x.rank() < 1 || x.size(0) != group.size())
    fail<ShapeError>("{}: expected a tensor of shape ({}, ...), one row for each rank, got {}",
                     function, group.size(), to_string(x.shape()));
}

CallOptions named(const CallOptions& options, const char* name) {
  CallOptions result = options;
  if (result.name.empty()) result.name = name;
  return result;
}
CallOptions backward_of(const CallOptions& options) {
  CallOptions result = options;
  result.name += " backward";
  return result;
}

// Waits for a collective. Meanwhile the backward computes the gradients that other operations have
// deferred.
Tensor result_of(Work work, const Tensor& result) {
  autograd::compute_deferred_gradients();
  work.wait();
  return result;
}

// Each of these computes one collective into a new row-major tensor.
Tensor reduced(const Tensor& x, const ProcessGroup& group, ReduceOp op,
               const CallOptions& options) {
  const Tensor result = empty(x.shape(), {x.dtype(), x.device()});
  result.copy_(x.detach());
  return result_of(group.all_reduce(result, op, options), result);
}
Tensor gathered(const Tensor& x, const ProcessGroup& group, const CallOptions& options) {
  Shape shape = x.shape();
  shape.insert(0, group.size());
  const Tensor result = empty(shape, {x.dtype(), x.device()});
  return result_of(group.all_gather(x.detach(), result, options), result);
}
Tensor scattered(const Tensor& x, const ProcessGroup& group, ReduceOp op,
                 const CallOptions& options) {
  Shape shape = x.shape();
  shape.erase(0);
  const Tensor result = empty(shape, {x.dtype(), x.device()});
  return result_of(group.reduce_scatter(x.detach(), result, op, options), result);
}

template <class Gradient>
Tensor record_collective(const char* name, const Tensor& output, const Tensor& x,
                         const ProcessGroup& group, Gradient gradient) {
  const Tensor recorded = autograd::record(name, output, {x}, std::move(gradient));
  autograd::mark_waits_for_ranks(recorded, group.implementation().get());
  return recorded;
}

}  // namespace

Tensor all_reduce(const Tensor& x, const ProcessGroup& group, ReduceOp op,
                  const CallOptions& options) {
  check_together(group, "all_reduce", [&] { check("all_reduce", x, op); });
  const CallOptions call = named(options, "differentiable all_reduce");
  return record_collective("all_reduce", reduced(x, group, op, call), x, group,
                           [group, op, call = backward_of(call)](const Tensor& gradient) {
                             return reduced(gradient, group, op, call);
                           });
}

Tensor all_gather(const Tensor& x, const ProcessGroup& group, const CallOptions& options) {
  check_together(group, "all_gather", [&] { check("all_gather", x, ReduceOp::sum); });
  const CallOptions call = named(options, "differentiable all_gather");
  return record_collective("all_gather", gathered(x, group, call), x, group,
                           [group, call = backward_of(call)](const Tensor& gradient) {
                             return scattered(gradient, group, ReduceOp::sum, call);
                           });
}

Tensor reduce_scatter(const Tensor& x, const ProcessGroup& group, ReduceOp op,
                      const CallOptions& options) {
  check_together(group, "reduce_scatter", [&] {
    check("reduce_scatter", x, op);
    check_rows("reduce_scatter", x, group);
  });
  const CallOptions call = named(options, "differentiable reduce_scatter");
  return record_collective("reduce_scatter", scattered(x, group, op, call), x, group,
                           [group, op, call = backward_of(call)](const Tensor& gradient) {
                             const Tensor all = gathered(gradient, group, call);
                             return op == ReduceOp::mean ? all * (1.0 / group.size()) : all;
                           });
}

}  // namespace tutti::distributed
