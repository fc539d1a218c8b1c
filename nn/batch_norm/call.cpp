#include "call.h"

#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../core/overlap.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti::nn {
namespace {

// Returns the number of channels that the input must have. Only if no argument fixes it, it is that
// of x.
std::int64_t expected_channels(const Tensor& x, const BatchNormArgs& args) {
  if (args.channels > 0) return args.channels;
  for (const Tensor* own : {&args.running.mean, &args.weight, &args.bias})
    if (own->defined()) return own->numel();
  return x.rank() < 2 ? 0 : x.size(1);
}

void check_input(const Call& call) {
  const Tensor& x = call.input;
  const InputDims& dims = call.args.input_dims;
  if (x.rank() < dims.min || x.rank() > dims.max)
    fail<ShapeError>("{}: expected input of shape {}, got {}", to_string(call.id), dims.shape,
                     to_string(x.shape()));
  const std::int64_t channels = expected_channels(x, call.args);
  if (channels < 1)
    fail<ShapeError>("{}: expected at least 1 channel, got input of shape {}", to_string(call.id),
                     to_string(x.shape()));
  if (x.size(1) != channels)
    fail<ShapeError>("{}: expected input of shape (N, {}, ...), got {}", to_string(call.id),
                     channels, to_string(x.shape()));
  if (!is_floating(x.dtype()) || (x.device().is_cpu() && x.dtype() == float16))
    fail<DTypeError>("{}: cannot normalise {} on {}; convert with .to(float32) or .to(bfloat16)",
                     to_string(call.id), to_string(x.dtype()), to_string(x.device()));
}

// Checks that all other tensors are on the input's device, and the shape and dtype of those with
// one value per channel.
void check_tensors(const Call& call) {
  const BatchNormArgs& args = call.args;
  const Shape& input = call.input.shape();
  for (const Tensor* own : {&args.weight, &args.bias, &args.running.mean, &args.running.var,
                            &args.running.batches, &args.running.elements, &args.position_weights})
    if (own->defined() && own->device() != call.input.device())
      fail<DeviceError>(
          "{}: input is on {}, the layer's tensors or the position weights are on {}; move one of "
          "them with .to(device)",
          to_string(call.id), to_string(call.input.device()), to_string(own->device()));
  for (const auto& [own, name] : {std::pair{&args.weight, "weight"}, std::pair{&args.bias, "bias"},
                                  std::pair{&args.running.mean, "running mean"},
                                  std::pair{&args.running.var, "running variance"}}) {
    if (!own->defined()) continue;
    if (!(own->shape() == Shape{input[1]}))
      fail<ShapeError>("{}: expected {} of shape ({}) for input of shape {}, got {}",
                       to_string(call.id), name, input[1], to_string(input),
                       to_string(own->shape()));
    if (own->dtype() != float32 && own->dtype() != float64)
      fail<DTypeError>("{}: expected {} in float32 or float64, got {}", to_string(call.id), name,
                       to_string(own->dtype()));
  }
}

void check_counter(const Call& call, const Tensor& t, const char* name, DType dtype) {
  if (!t.defined() || t.numel() != 1)
    fail<ShapeError>("{}: expected the {} so far as one {} beside the running statistics",
                     to_string(call.id), name, to_string(dtype));
  if (t.dtype() != dtype)
    fail<DTypeError>("{}: expected the {} so far in {}, got {}", to_string(call.id), name,
                     to_string(dtype), to_string(t.dtype()));
}

// Checks the running statistics. Kernels change them in place, so they must also fit each other.
void check_running_statistics(const Call& call) {
  const auto& [mean, var, batches, elements] = call.args.running;
  if (mean.defined() != var.defined())
    fail<ValueError>("{}: expected running mean and variance both or neither, got only the {}",
                     to_string(call.id), mean.defined() ? "mean" : "variance");
  if (!mean.defined()) return;
  if (mean.dtype() != var.dtype())
    fail<DTypeError>("{}: expected running mean and variance of one dtype, got {} and {}",
                     to_string(call.id), to_string(mean.dtype()), to_string(var.dtype()));
  if (!mean.is_contiguous() || !var.is_contiguous())
    fail<ShapeError>("{}: expected dense running mean and variance; they are changed in place",
                     to_string(call.id));
  if (!call.args.use_batch_statistics || !call.args.update_running) return;
  for (const Tensor* written : {&mean, &var})
    for (const Tensor* other : {&mean, &var, &call.input, &call.args.residual, &call.args.weight,
                                &call.args.bias, &call.args.position_weights})
      if (other != written && other->defined() && overlap(*written, *other))
        fail<ValueError>(
            "{}: the running statistics, which are changed in place, share memory with each other "
            "or with another argument; pass a clone()",
            to_string(call.id));
  check_counter(call, batches, "number of batches", int64);
  if (call.args.tracking == kernels::Tracking::pooled)
    check_counter(call, elements, "number of elements", float64);
}

void check_residual(const Call& call) {
  const Tensor &x = call.input, &r = call.args.residual;
  if (r.defined() &&
      !(r.shape() == x.shape() && r.dtype() == x.dtype() && r.device() == x.device()))
    fail<ShapeError>("{}: expected a residual like the input, {} {} on {}, got {} {} on {}",
                     to_string(call.id), to_string(x.dtype()), to_string(x.shape()),
                     to_string(x.device()), to_string(r.dtype()), to_string(r.shape()),
                     to_string(r.device()));
}

void check_arguments(const Call& call) {
  const BatchNormArgs& args = call.args;
  if (!(std::isfinite(args.eps.value) && args.eps.value >= 0))
    fail<ValueError>("{}: expected a finite eps of at least 0, got {}", to_string(call.id),
                     args.eps.value);
  if (!(args.momentum >= 0 && args.momentum <= 1))
    fail<ValueError>("{}: expected a momentum in [0, 1], got {}", to_string(call.id),
                     args.momentum);
  check_input(call);
  check_tensors(call);
  check_running_statistics(call);
  check_residual(call);
}

// Checks the values of the weights on the CPU. On a device the host would have to wait for them.
void check_weight_values(const Call& call, const Tensor& weights) {
  if (!weights.device().is_cpu()) return;
  dispatch(FloatTypes{}, weights.dtype(), "batch_norm", [&]<class T>() {
    const T *begin = weights.data<T>(), *end = begin + weights.numel();
    if (const T* bad = std::find_if(begin, end, [](T w) { return !(w >= 0 && std::isfinite(w)); });
        bad != end)
      fail<ValueError>("{}: expected finite position weights of at least 0, got {}",
                       to_string(call.id), *bad);
  });
}

// Returns a dense tensor (N, ...) with one weight for every position, in float64 if the weights
// were given in float64, else in float32.
Tensor dense_position_weights(const Call& call) {
  Tensor w = call.args.position_weights.detach();
  Shape positions = call.input.shape();
  positions.erase(1);
  const bool per_sample = w.rank() == 1 && positions.size() > 1;
  if (!(w.shape() == (per_sample ? Shape{positions[0]} : positions)))
    fail<ShapeError>("{}: expected position weights of shape {} or {} for input {}, got {}",
                     to_string(call.id), to_string(positions), to_string(Shape{positions[0]}),
                     to_string(call.input.shape()), to_string(w.shape()));
  if (per_sample) {
    Shape sample = Dims::filled(positions.size(), 1);
    sample[0] = positions[0];
    w = w.reshape(sample).expand(positions);
  }
  if (w.dtype() != float64) w = w.to(float32);
  w = w.contiguous();
  check_weight_values(call, w);
  return w;
}

// Returns what must be the same on every rank beside the name of a call and the size of its packet.
// The text is made again only where it changes.
const std::string& traits_of(const Call& call) {
  const BatchNormArgs& args = call.args;
  CallHistory& history = *call.history;
  const bool tracked = args.running.mean.defined();
  const auto parts = std::tuple(call.x.dtype(), args.eps.value, args.eps.floor, args.tracking,
                                args.momentum, args.weight.defined(), args.bias.defined(), tracked);
  if (!history.traits.empty() && parts == history.traits_of) return history.traits;
  history.traits_of = parts;
  history.traits = fmt::format(
      ", {} input, eps={}{}, {}, affine={}, bias={}, track_running_stats={}",
      to_string(call.x.dtype()), args.eps.value, args.eps.floor ? " as floor" : "",
      args.tracking == kernels::Tracking::pooled     ? "pooled"
      : args.tracking == kernels::Tracking::momentum ? fmt::format("momentum={}", args.momentum)
                                                     : "momentum=none",
      args.weight.defined(), args.bias.defined(), tracked);
  if (history.layer > 0)
    history.traits += fmt::format(", layer {} of group '{}'", history.layer, args.group->name());
  return history.traits;
}

[[noreturn]] void fail_not_a_member(const CallId& id) {
  throw DistributedError(
      fmt::format("{}: this rank is no member of its group '{}'; give the layer a group that has "
                  "this rank, or none",
                  id.name, id.group->name()),
      {.operation = "all_reduce", .sequence = id.number, .name = id.name});
}

}  // namespace

Call checked_call(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history) {
  Call call{.args = args,
            .input = x,
            .id = {args.name, args.group, history->synchronized_calls + 1},
            .needed = {.input = autograd::needs_grad(x),
                       .weight = autograd::needs_grad(args.weight),
                       .bias = autograd::needs_grad(args.bias),
                       .residual = autograd::needs_grad(args.residual)},
            .history = history};
  const bool shares = args.use_batch_statistics && args.group;
  if (shares && args.group->rank() < 0) fail_not_a_member(call.id);
  call.is_synchronized = shares && args.group->communicates();
  history->deferred_errors.throw_arrived();
  try {
    check_arguments(call);
    call.x = dense(x, format_of(x));
    if (args.position_weights.defined()) call.position_weights = dense_position_weights(call);
  } catch (const Error& error) {
    if (call.is_synchronized) announce_refusal(call.id, error.what());
    throw;
  }
  if (call.is_synchronized) call.id.traits = traits_of(call);
  return call;
}

Tensor dense(const Tensor& x, MemoryFormat format) {
  return x.is_contiguous(format) ? x.detach() : x.detach().contiguous(format);
}

MemoryFormat format_of(const Tensor& x) {
  if (x.is_contiguous(MemoryFormat::channels_last)) return MemoryFormat::channels_last;
  if (x.is_contiguous()) return MemoryFormat::contiguous;
  return x.strides()[1] == 1 && x.size(1) > 1 ? MemoryFormat::channels_last
                                              : MemoryFormat::contiguous;
}

}  // namespace tutti::nn
