#include "arguments.h"

#include "../../core/create.h"

#include <algorithm>
#include <cmath>

namespace tutti::nn {
namespace {

struct Own {
  const Tensor& tensor;
  const char* name;
};

void check_own(const Tensor& x, const Own& own, const BatchNormArgs& args) {
  const Tensor& t = own.tensor;
  if (!t.defined()) return;
  if (!(t.shape() == Shape{x.size(1)}))
    fail<ShapeError>("{}: expected {} of shape ({}) for input of shape {}, got {}", place(args),
                     own.name, x.size(1), to_string(x.shape()), to_string(t.shape()));
  if (t.dtype() != float32 && t.dtype() != float64)
    fail<DTypeError>("{}: expected {} in float32 or float64, got {}", place(args), own.name,
                     to_string(t.dtype()));
}

// The running statistics are written in place, so they have to fit each other too.
void check_running(const BatchNormArgs& args) {
  const auto& [mean, var, batches, elements] = args.running;
  if (mean.defined() != var.defined())
    fail<ValueError>("{}: expected running mean and variance both or neither, got only the {}",
                     place(args), mean.defined() ? "mean" : "variance");
  if (!mean.defined()) return;
  if (mean.dtype() != var.dtype())
    fail<DTypeError>("{}: expected running mean and variance of one dtype, got {} and {}",
                     place(args), to_string(mean.dtype()), to_string(var.dtype()));
  if (!mean.is_contiguous() || !var.is_contiguous())
    fail<ShapeError>("{}: expected dense running mean and variance; they are changed in place",
                     place(args));
  if (!args.use_batch_statistics || !args.update_running) return;
  const auto check_counter = [&](const Tensor& t, const char* name, DType dtype) {
    if (!t.defined() || t.numel() != 1)
      fail<ShapeError>("{}: expected the {} so far as one {} beside the running statistics",
                       place(args), name, to_string(dtype));
    if (t.dtype() != dtype)
      fail<DTypeError>("{}: expected the {} so far in {}, got {}", place(args), name,
                       to_string(dtype), to_string(t.dtype()));
  };
  check_counter(batches, "number of batches", int64);
  if (args.tracking == kernels::Tracking::pooled)
    check_counter(elements, "number of elements", float64);
}

// Where that takes no waiting for a device.
void check_values(const Tensor& weights, const BatchNormArgs& args) {
  if (!weights.device().is_cpu()) return;
  dispatch(FloatTypes{}, weights.dtype(), "batch_norm", [&]<class T>() {
    const T *from = weights.data<T>(), *end = from + weights.numel();
    if (const T* bad = std::find_if(from, end, [](T w) { return !(w >= 0 && std::isfinite(w)); });
        bad != end)
      fail<ValueError>("{}: expected finite position weights of at least 0, got {}", place(args),
                       *bad);
  });
}

}  // namespace

std::string too_few(const BatchNormArgs& args, double count, const Shape& input) {
  return fmt::format(
      "{}: expected more than 1 value per channel{} when training, got {} (input {} here)",
      place(args), args.sync ? " over all ranks" : "", count, to_string(input));
}

std::string place(const BatchNormArgs& args) {
  if (!args.sync) return args.name;
  return fmt::format("{} forward #{} on rank {} of {}", args.name, args.sync->call,
                     args.sync->group.rank(), args.sync->group.size());
}

std::int64_t expected_channels(const Tensor& x, const BatchNormArgs& args) {
  if (args.channels > 0) return args.channels;
  for (const Tensor* own : {&args.running.mean, &args.weight, &args.bias})
    if (own->defined()) return own->numel();
  return x.rank() < 2 ? 0 : x.size(1);
}

void check_arguments(const Tensor& x, const BatchNormArgs& args) {
  const auto where = [&] { return place(args); };
  if (!(std::isfinite(args.eps.value) && args.eps.value >= 0))
    fail<ValueError>("{}: expected a finite eps of at least 0, got {}", where(), args.eps.value);
  if (!(args.momentum >= 0 && args.momentum <= 1))
    fail<ValueError>("{}: expected a momentum in [0, 1], got {}", where(), args.momentum);
  if (x.rank() < args.input.from || x.rank() > args.input.to)
    fail<ShapeError>("{}: expected input of shape {}, got {}", where(), args.input.shape,
                     to_string(x.shape()));
  const std::int64_t channels = expected_channels(x, args);
  if (channels < 1)
    fail<ShapeError>("{}: expected at least 1 channel, got input of shape {}", where(),
                     to_string(x.shape()));
  if (x.size(1) != channels)
    fail<ShapeError>("{}: expected input of shape (N, {}, ...), got {}", where(), channels,
                     to_string(x.shape()));
  if (!is_floating(x.dtype()) || (x.device().is_cpu() && x.dtype() == float16))
    fail<DTypeError>("{}: cannot normalise {} on {}; convert with .to(float32) or .to(bfloat16)",
                     where(), to_string(x.dtype()), to_string(x.device()));
  for (const Tensor* own : {&args.weight, &args.bias, &args.running.mean, &args.running.var,
                            &args.running.batches, &args.running.elements, &args.position_weights})
    if (own->defined() && own->device() != x.device())
      fail<DeviceError>(
          "{}: input is on {}, the layer's tensors or the position weights are on {}; move one of "
          "them with .to(device)",
          where(), to_string(x.device()), to_string(own->device()));
  for (const Own& own :
       {Own{args.weight, "weight"}, Own{args.bias, "bias"}, Own{args.running.mean, "running mean"},
        Own{args.running.var, "running variance"}})
    check_own(x, own, args);
  check_running(args);
  check_residual(x, args.residual, args);
}

void check_residual(const Tensor& x, const Tensor& r, const BatchNormArgs& args) {
  if (r.defined() &&
      !(r.shape() == x.shape() && r.dtype() == x.dtype() && r.device() == x.device()))
    fail<ShapeError>("{}: expected a residual like the input, {} {} on {}, got {} {} on {}",
                     place(args), to_string(x.dtype()), to_string(x.shape()), to_string(x.device()),
                     to_string(r.dtype()), to_string(r.shape()), to_string(r.device()));
}

MemoryFormat format_of(const Tensor& x) {
  if (x.is_contiguous(MemoryFormat::channels_last)) return MemoryFormat::channels_last;
  if (x.is_contiguous()) return MemoryFormat::contiguous;
  return x.strides()[1] == 1 && x.size(1) > 1 ? MemoryFormat::channels_last
                                              : MemoryFormat::contiguous;
}

Tensor dense(const Tensor& x, MemoryFormat format) {
  return x.is_contiguous(format) ? x.detach() : x.detach().contiguous(format);
}

Tensor dense_weights(const Tensor& x, const BatchNormArgs& args) {
  if (!args.position_weights.defined()) return {};
  Tensor w = args.position_weights.detach();
  Shape full = x.shape();
  full.erase(1);
  const bool per_sample = w.rank() == 1 && full.size() > 1;
  if (!(w.shape() == (per_sample ? Shape{full[0]} : full)))
    fail<ShapeError>("{}: expected position weights of shape {} or {} for input {}, got {}",
                     place(args), to_string(full), to_string(Shape{full[0]}), to_string(x.shape()),
                     to_string(w.shape()));
  if (per_sample) {
    Shape ones = Dims::filled(full.size(), 1);
    ones[0] = full[0];
    w = w.reshape(ones).expand(full);
  }
  if (w.dtype() != float64) w = w.to(float32);
  w = w.contiguous();
  check_values(w, args);
  return w;
}

}  // namespace tutti::nn
