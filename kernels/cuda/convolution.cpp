// This file implements convolution on CUDA devices. cuDNN's execution plans (cudnn_graph.h) are
// found once for each problem, thread and device, and run on the current stream. A plan that fails,
// or whose workspace cannot be allocated, is replaced by the next. cuDNN requires one dtype and one
// layout for all tensors. An input that differs (float32 weights of 16-bit activations, a weight in
// the other layout) is copied before the plan runs, and a result that differs is copied afterwards.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/cuda/settings.h"
#include "../../core/cuda/stream.h"
#include "cudnn_graph.h"
#include "plan_list.h"
#include "thread_state.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace tutti::kernels::cuda {
namespace {

using cudnn::ConvolutionProblem;
using cudnn::Direction;
using cudnn::ExecutionPlan;
using tutti::cuda::current_stream;
using tutti::cuda::DeviceScope;
using tutti::cuda::Event;
using tutti::cuda::settings;
using tutti::cuda::Stream;

struct Cudnn {
  explicit Cudnn(int) { cudnn::check(cudnnCreate(&handle), "convolution: cudnnCreate"); }

  using Plans = PlanList<cudnn::PlanSearch>;
  struct KnownPlans {
    std::optional<Plans> guessed, timed;
  };
  cudnnHandle_t handle = nullptr;
  std::map<std::vector<std::int64_t>, KnownPlans> plans;
};

// The device addresses of the tensors of a problem; `bias` is null if there is no bias.
struct Addresses {
  void *x, *w, *y, *bias;
};

void execute(cudnnHandle_t handle, const ExecutionPlan& plan, const Addresses& at, Device device) {
  const Storage workspace(static_cast<std::size_t>(plan.workspace), device);
  const std::int64_t ids[] = {cudnn::x_id, cudnn::w_id, cudnn::y_id, cudnn::bias_id};
  void* const pointers[] = {at.x, at.w, at.y, at.bias};
  const std::int64_t count = at.bias ? 4 : 3;
  cudnn::Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace.data());
  pack.finalize();
  const cudnnStatus_t status = cudnnBackendExecute(handle, plan.descriptor.get(), pack.get());
  // A CUDA error of a plan that another plan replaces must not reach the next launch's check.
  if (status != CUDNN_STATUS_SUCCESS) cudaGetLastError();
  cudnn::check(status, "cudnnBackendExecute");
}

// Returns the milliseconds that a plan takes on the real tensors, the least of three runs. Every
// run writes the same output.
double measure(cudnnHandle_t handle, const ExecutionPlan& plan, const Addresses& at, Device device,
               const Stream& stream) {
  double shortest = std::numeric_limits<double>::infinity();
  execute(handle, plan, at, device);  // The first run loads the plan's kernels.
  for (int run = 0; run < 3; ++run) {
    Event start(Event::Kind::timing), stop(Event::Kind::timing);
    start.record(stream);
    execute(handle, plan, at, device);
    stop.record(stream);
    stop.synchronize("autotune");
    shortest = std::min(shortest, stop.milliseconds_since(start));
  }
  return shortest;
}

Cudnn::Plans& plans_for(Cudnn& cudnn_state, const ConvolutionProblem& problem, const Addresses& at,
                        Device device, const Stream& stream) {
  Cudnn::KnownPlans& known = cudnn_state.plans[problem.key()];
  const bool tune = settings().autotune;
  if (tune && known.timed) return *known.timed;
  // Timing waits for the device, which is forbidden while a graph is captured.
  const bool time_now = tune && !stream.is_capturing();
  if (!time_now && known.guessed) return *known.guessed;
  Cudnn::Plans plans(cudnn::PlanSearch(problem, {.handle = cudnn_state.handle}));
  if (!time_now) return known.guessed.emplace(std::move(plans));
  plans.sort_by_time(8, [&](const ExecutionPlan& plan) {
    return measure(cudnn_state.handle, plan, at, device, stream);
  });
  return known.timed.emplace(std::move(plans));
}

// Returns the bias, or a copy of it, that is dense, has dtype `dtype` and is aligned to 16 bytes.
// Plans assume this alignment because the address of the bias is not part of a problem.
Tensor dense_bias(const Tensor& bias, DType dtype) {
  if (!bias.defined()) return bias;
  const bool aligned = reinterpret_cast<std::uintptr_t>(bias.raw()) % 16 == 0;
  if (aligned && bias.dtype() == dtype && bias.is_contiguous()) return bias;
  const Tensor copy = empty(bias.shape(), {dtype, bias.device()});
  table().elementwise.copy(bias, copy);
  return copy;
}

// Returns `t`, or a copy of it with this dtype and layout.
Tensor matched(const Tensor& t, DType dtype, MemoryFormat format) {
  if (t.dtype() == dtype && t.is_contiguous(format)) return t;
  const Tensor copy = empty(t.shape(), {dtype, t.device()}, format);
  table().elementwise.copy(t, copy);
  return copy;
}

// Returns the tensor that a plan writes: `t`, or a new tensor with this dtype and layout, which the
// caller then copies to `t`.
Tensor result_for(const Tensor& t, DType dtype, MemoryFormat format) {
  return t.dtype() == dtype && t.is_contiguous(format)
             ? t
             : empty(t.shape(), {dtype, t.device()}, format);
}

// Returns the layout in which the fewest tensors have to be copied, where activations count most.
MemoryFormat format_of(const Tensor& x, const Tensor& w, const Tensor& y) {
  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const bool both_first = x.is_contiguous() && y.is_contiguous();
  const bool both_last = x.is_contiguous(last) && y.is_contiguous(last);
  if (both_first && both_last) return w.is_contiguous() ? MemoryFormat::contiguous : last;
  return both_last || (!both_first && y.is_contiguous(last)) ? last : MemoryFormat::contiguous;
}

// The tensors of a convolution, of one dtype and one layout. In the backward directions `y` is its
// gradient, and one of the others is a gradient that is computed.
struct ConvolutionTensors {
  Tensor x, w, y, bias = {};
  MemoryFormat format;
};

void run(Direction direction, const ConvolutionTensors& tensors, const ConvOptions& options) {
  const auto& [x, w, y, bias, format] = tensors;
  const auto describe = [memory_format = format](const Tensor& t) {
    return cudnn::describe(t.dtype(), t.shape(), memory_format, t.raw());
  };
  ConvolutionProblem problem{.direction = direction,
                             .x = describe(x),
                             .w = describe(w),
                             .y = describe(y),
                             .stride = cudnn::spatial(options.stride, 1),
                             .padding = cudnn::spatial(options.padding, 0),
                             .dilation = cudnn::spatial(options.dilation, 1),
                             .allow_tf32 = settings().allow_tf32,
                             .deterministic = settings().deterministic};
  if (bias.defined()) problem.bias = bias.dtype();
  const Addresses at{x.raw(), w.raw(), y.raw(), bias.defined() ? bias.raw() : nullptr};
  const Device device = x.device();
  Cudnn& cudnn_state = thread_state<Cudnn>(device.index());
  const Stream& stream = current_stream(device.index());
  cudnn::check(cudnnSetStream(cudnn_state.handle, stream.get()), "convolution: cudnnSetStream");
  Cudnn::Plans& plans = plans_for(cudnn_state, problem, at, device, stream);
  const bool found = plans.run([&](const ExecutionPlan& plan) {
    try {
      execute(cudnn_state.handle, plan, at, device);
    } catch (const DeviceError& error) {
      fail<DeviceError>("{}: {}", problem.text(), error.what());
    }
  });
  if (!found)
    fail<DeviceError>("{}: cuDNN has no {}algorithm for this", problem.text(),
                      problem.deterministic ? "deterministic " : "");
}

void copy_back(const Tensor& from, const Tensor& to) {
  if (!from.is_same(to)) table().elementwise.copy(from, to);
}

void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  const DType dtype = x.dtype();
  const MemoryFormat format = format_of(x, w, y);
  const Tensor out = result_for(y, dtype, format);
  run(Direction::forward,
      {.x = matched(x, dtype, format),
       .w = matched(w, dtype, format),
       .y = out,
       .bias = dense_bias(bias, dtype),
       .format = format},
      options);
  copy_back(out, y);
}

void backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dy.device().index());
  const DType dtype = dy.dtype();
  const MemoryFormat format = format_of(dy, w, dx);
  const Tensor out = result_for(dx, dtype, format);
  run(Direction::backward_input,
      {.x = out, .w = matched(w, dtype, format), .y = matched(dy, dtype, format), .format = format},
      options);
  copy_back(out, dx);
}

void backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw, const Tensor& db) {
  const DeviceScope scope(x.device().index());
  if (x.numel() == 0) {
    table().elementwise.fill(dw, 0);
    if (db.defined()) table().elementwise.fill(db, 0);
    return;
  }
  const DType dtype = x.dtype();
  const MemoryFormat format = format_of(x, dw, dy);
  const Tensor gradient = matched(dy, dtype, format), out = result_for(dw, dtype, format);
  run(Direction::backward_weight,
      {.x = matched(x, dtype, format), .w = out, .y = gradient, .format = format}, options);
  copy_back(out, dw);
  if (!db.defined()) return;
  Shape shape = Dims::filled(dy.rank(), 1);
  Strides strides = shape;
  shape[1] = db.shape()[0];
  strides[1] = db.strides()[0];
  table().reduce.reduce(Reduction::sum, matched(gradient, db.dtype(), format),
                        db.alias(shape, strides, db.offset()));
}

}  // namespace

extern const Convolution convolution{
    .forward = forward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .keep_packed = [](const Tensor&) {}};  // cuDNN takes weights as they are

}  // namespace tutti::kernels::cuda
