// Convolution on CUDA devices: cuDNN's plans (cudnn_graph.h), found once for each problem, thread
// and device, and run on the current stream. cuDNN wants one dtype and one layout for all operands:
// what differs (float32 weights of 16-bit activations, a weight in the other layout) is copied
// first, and gradients of weights in 16 bits are converted after.
#include "../convolution.h"

#include "../../core/create.h"
#include "../../core/cuda/settings.h"
#include "../../core/cuda/stream.h"
#include "../elementwise.h"
#include "../reduce.h"
#include "cudnn_graph.h"
#include "per_thread.h"

#include <algorithm>
#include <limits>
#include <map>

namespace tutti::kernels::cuda {
namespace {

using cudnn::Direction;
using cudnn::Plan;
using cudnn::Problem;
using tutti::cuda::current_stream;
using tutti::cuda::DeviceScope;
using tutti::cuda::Event;
using tutti::cuda::settings;
using tutti::cuda::Stream;

struct Library {
  explicit Library(int) { cudnn::check(cudnnCreate(&handle), "convolution: cudnnCreate"); }

  struct Plans {
    std::optional<Plan> guessed, timed;
  };
  cudnnHandle_t handle = nullptr;
  std::map<std::vector<std::int64_t>, Plans> plans;
};

struct Addresses {
  void *x, *w, *y, *bias;
};

void execute(cudnnHandle_t handle, const Plan& plan, const Addresses& at, Device device) {
  const Storage workspace(static_cast<std::size_t>(plan.workspace), device);
  const std::int64_t names[] = {cudnn::x_name, cudnn::w_name, cudnn::y_name, cudnn::bias_name};
  void* const pointers[] = {at.x, at.w, at.y, at.bias};
  const std::int64_t count = at.bias ? 4 : 3;
  cudnn::Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace.data());
  pack.finalize();
  cudnn::check(cudnnBackendExecute(handle, plan.descriptor.get(), pack.get()),
               "cudnnBackendExecute");
}

// The fastest of several plans, each run on the real operands: every run writes the same output.
Plan fastest(cudnnHandle_t handle, std::vector<Plan> plans, const Addresses& at, Device device,
             const Stream& stream) {
  std::size_t best = 0;
  double shortest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < plans.size(); ++i) try {
      execute(handle, plans[i], at, device);  // loads its kernels
      for (int run = 0; run < 3; ++run) {
        Event start(Event::Kind::timing), stop(Event::Kind::timing);
        start.record(stream);
        execute(handle, plans[i], at, device);
        stop.record(stream);
        stop.synchronize("autotune");
        const double time = stop.milliseconds_since(start);
        if (time < shortest) shortest = time, best = i;
      }
    } catch (const Error&) {
      // One that needs more memory than there is, say: the others remain, and where none does the
      // caller's run tells.
    }
  return std::move(plans[best]);
}

const Plan& plan_for(Library& library, const Problem& problem, const Addresses& at, Device device,
                     const Stream& stream) {
  Library::Plans& known = library.plans[problem.key()];
  const bool tune = settings().autotune;
  if (tune && known.timed) return *known.timed;
  const bool time_now =
      tune && !stream.is_capturing();  // timing waits, which nobody may while a graph is captured
  if (!time_now && known.guessed) return *known.guessed;
  std::vector<Plan> plans =
      cudnn::find_plans(problem, {.handle = library.handle}, time_now ? 8 : 1);
  if (plans.empty())
    fail<DeviceError>("{}: cuDNN has no {}algorithm for this", problem.text(),
                      problem.deterministic ? "deterministic " : "");
  // A plan stays for good: kernels of it may be on their way when a better one is found.
  if (time_now)
    return known.timed.emplace(fastest(library.handle, std::move(plans), at, device, stream));
  return known.guessed.emplace(std::move(plans.front()));
}

// As cuDNN's plans expect the bias, whose address is not part of a problem.
Tensor dense_bias(const Tensor& bias, DType dtype) {
  if (!bias.defined()) return bias;
  const bool aligned = reinterpret_cast<std::uintptr_t>(bias.raw()) % 16 == 0;
  if (aligned && bias.dtype() == dtype && bias.is_contiguous()) return bias;
  const Tensor copy = empty(bias.shape(), {dtype, bias.device()});
  elementwise().copy(bias, copy);
  return copy;
}

// `t` as cuDNN is to see it: itself, or a copy.
Tensor matched(const Tensor& t, DType dtype, MemoryFormat format) {
  if (t.dtype() == dtype && t.is_contiguous(format)) return t;
  const Tensor copy = empty(t.shape(), {dtype, t.device()}, format);
  elementwise().copy(t, copy);
  return copy;
}

// The same for a result: itself, or what is to be copied into it.
Tensor target(const Tensor& t, DType dtype, MemoryFormat format) {
  return t.dtype() == dtype && t.is_contiguous(format)
             ? t
             : empty(t.shape(), {dtype, t.device()}, format);
}

// The layout in which the fewest have to be copied; of activations above all.
MemoryFormat format_of(const Tensor& x, const Tensor& w, const Tensor& y) {
  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const bool both_first = x.is_contiguous() && y.is_contiguous();
  const bool both_last = x.is_contiguous(last) && y.is_contiguous(last);
  if (both_first && both_last) return w.is_contiguous() ? MemoryFormat::contiguous : last;
  return both_last || (!both_first && y.is_contiguous(last)) ? last : MemoryFormat::contiguous;
}

// x, w and y have `format` and one dtype.
void run(Direction direction, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias,
         const ConvOptions& options, MemoryFormat format) {
  const auto operand = [format](const Tensor& t) {
    return cudnn::operand(t.dtype(), t.shape(), format, t.raw());
  };
  Problem problem{.direction = direction,
                  .x = operand(x),
                  .w = operand(w),
                  .y = operand(y),
                  .stride = cudnn::spatial(options.stride, 1),
                  .padding = cudnn::spatial(options.padding, 0),
                  .dilation = cudnn::spatial(options.dilation, 1),
                  .allow_tf32 = settings().allow_tf32,
                  .deterministic = settings().deterministic};
  if (bias.defined()) problem.bias = bias.dtype();
  const Addresses at{x.raw(), w.raw(), y.raw(), bias.defined() ? bias.raw() : nullptr};
  Library& library = per_thread<Library>(x.device().index());
  const Stream& stream = current_stream(x.device().index());
  cudnn::check(cudnnSetStream(library.handle, stream.get()), "convolution: cudnnSetStream");
  const Plan& plan = plan_for(library, problem, at, x.device(), stream);
  try {
    execute(library.handle, plan, at, x.device());
  } catch (const DeviceError& error) {
    fail<DeviceError>("{}: {}", problem.text(), error.what());
  }
}

void copy_back(const Tensor& from, const Tensor& to) {
  if (!from.is_same(to)) elementwise().copy(from, to);
}

void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  const DType dtype = x.dtype();
  const MemoryFormat format = format_of(x, w, y);
  const Tensor out = target(y, dtype, format);
  run(Direction::forward, matched(x, dtype, format), matched(w, dtype, format), out,
      dense_bias(bias, dtype), options, format);
  copy_back(out, y);
}

void backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dy.device().index());
  const DType dtype = dy.dtype();
  const MemoryFormat format = format_of(dy, w, dx);
  const Tensor out = target(dx, dtype, format);
  run(Direction::backward_input, out, matched(w, dtype, format), matched(dy, dtype, format), {},
      options, format);
  copy_back(out, dx);
}

void backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw, const Tensor& db) {
  const DeviceScope scope(x.device().index());
  if (x.numel() == 0) {
    elementwise().fill(dw, 0);
    if (db.defined()) elementwise().fill(db, 0);
    return;
  }
  const DType dtype = x.dtype();
  const MemoryFormat format = format_of(x, dw, dy);
  const Tensor gradient = matched(dy, dtype, format), out = target(dw, dtype, format);
  run(Direction::backward_weight, matched(x, dtype, format), out, gradient, {}, options, format);
  copy_back(out, dw);
  if (!db.defined()) return;
  Shape shape = Dims::filled(dy.rank(), 1);
  Strides strides = shape;
  shape[1] = db.shape()[0];
  strides[1] = db.strides()[0];
  reduce().reduce(Reduction::sum, matched(gradient, db.dtype(), format),
                  db.alias(shape, strides, db.offset()));
}

}  // namespace

const Convolution& convolution() {
  static constexpr Convolution table{forward, backward_input, backward_weight};
  return table;
}

}  // namespace tutti::kernels::cuda
