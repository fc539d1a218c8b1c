// The forward of batch norm for one layer, and below it the steps that it takes.
#include "forward.h"

#include "../../autograd/recompute.h"
#include "../../core/create.h"
#include "backward.h"

#include <algorithm>

namespace tutti::nn {
namespace {

Output forward_in_one_kernel(const Call& call);

}  // namespace

Tensor batch_norm(const Tensor& x, const BatchNormArgs& args) {
  return batch_norm(x, args, std::make_shared<CallHistory>());
}

Tensor batch_norm(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history) {
  const Call call = checked_call(x, args, history);  // An error reaches the other ranks too.
  observe(call);
  const bool is_identity = args.is_folded && !args.relu && !args.residual.defined();
  if (call.uses_running_statistics() && is_identity) return x;
  return record_backward(call, compute_output(call));
}

Output compute_output(const Call& call) {
  // Calls of one rank without position weights, in evaluation and in a recomputation need no sums
  // of other ranks.
  if (call.fits_one_kernel()) return forward_in_one_kernel(call);
  if (call.uses_running_statistics()) return apply(call, running_statistics(call));
  if (call.is_recomputation) return apply(call, saved_statistics(call));

  // One collective adds up the sums of every channel over all ranks. A rank alone (with position
  // weights) computes its own moments instead, and exchanges nothing.
  const Tensor sums = local_sums(call);
  const kernels::PacketHeader header = all_reduce(call, sums);
  expect_variance(header, call.id, call.x.shape());

  // One kernel computes mean and 1 / sqrt(var + eps), updates the running statistics and
  // normalises.
  const Statistics statistics = pending_statistics(call, sums, header);
  remember(call, statistics);
  return apply(call, statistics);
}

namespace {

double values_per_channel(const Tensor& x) {
  return static_cast<double>(x.numel()) / static_cast<double>(std::max<std::int64_t>(1, x.size(1)));
}

Statistics new_statistics(const Call& call) {
  const auto per_channel = [&] { return empty({call.channels()}, {float64, call.x.device()}); };
  return {.mean = per_channel(), .rstd = per_channel(), .call_number = call.id.number};
}

// Returns statistics that a kernel has computed meanwhile.
Statistics computed(Statistics pending) {
  pending.is_pending = false;
  pending.sums = {};
  return pending;
}

// Returns how the kernels update the running statistics. Marks these as changed in place, because
// autograd would not notice a kernel's writes.
kernels::StatisticsUpdate statistics_update(const Call& call) {
  const BatchNormArgs& args = call.args;
  kernels::StatisticsUpdate update{.eps = args.eps};
  if (call.is_synchronized) update.ranks = args.group->size();
  if (!args.update_running || !args.running.mean.defined()) return update;
  update.tracking = args.tracking;
  update.momentum = args.momentum;
  update.running = args.running;
  for (const Tensor* changed :
       {&args.running.mean, &args.running.var, &args.running.batches, &args.running.elements})
    if (changed->defined()) changed->storage()->bump_version();
  return update;
}

// Returns whether recompute() will run the present function again. Its first run records no
// backward, but the second run does.
bool will_be_recomputed() { return autograd::RecomputeTape::current() != nullptr; }

bool runs_backward(const Call& call) { return will_be_recomputed() || call.needed.any(); }

// Returns what the host needs to check the header of the call later. A batch of one rank has no
// group to check.
ReportedCall reported_call(const Call& call) {
  return {.id = call.is_synchronized ? call.id : CallId{.name = call.id.name},
          .phase = Phase::forward,
          .input = call.x.shape(),
          .runs_backward = runs_backward(call)};
}

// Returns the arguments of the kernels that compute the output. After a residual, the backward
// reads from a mask where the ReLU passed values; on a device whose mask_size() is 0 it reads y
// instead.
kernels::Normalization normalization_of(const Call& call, const Statistics& statistics) {
  const auto dense_or_undefined = [](const Tensor& t, MemoryFormat format) {
    return t.defined() ? dense(t, format) : Tensor();
  };
  const BatchNormArgs& args = call.args;
  const bool is_masked = call.needed.any() && args.relu && args.residual.defined();
  const std::int64_t mask_bytes = is_masked ? call.kernels().mask_size(call.x) : 0;
  return {.mean = statistics.mean,
          .rstd = statistics.rstd,
          .weight = dense_or_undefined(args.weight, MemoryFormat::contiguous),
          .bias = dense_or_undefined(args.bias, MemoryFormat::contiguous),
          .residual = dense_or_undefined(args.residual, format_of(call.x)),
          .relu = args.relu,
          .mask = mask_bytes > 0 ? empty({mask_bytes}, {uint8, call.x.device()}) : Tensor()};
}

// Computes moments, statistics, running statistics and output in one kernel, for a batch of this
// rank alone.
Output forward_in_one_kernel(const Call& call) {
  expect_variance({.count = values_per_channel(call.x)}, call.id, call.x.shape());
  Statistics statistics = new_statistics(call);
  statistics.moments = empty({kernels::packet_size(call.channels())}, {float64, call.x.device()});
  const kernels::Normalization normalization = normalization_of(call, statistics);
  const Tensor y = empty_like(call.x);
  call.kernels().forward(call.x, statistics.moments, statistics_update(call), normalization, y);
  remember(call, statistics);
  return {y, statistics, normalization};
}

}  // namespace

Tensor local_sums(const Call& call) {
  // Sums of squares in float64 keep every digit of an M2 that was summed in float32. They would
  // lose digits of an M2 that was summed in float64, so float64 input sends exact sums.
  const bool is_exact = call.is_synchronized && call.x.dtype() == float64;
  const std::int64_t size = is_exact ? kernels::exact_packet_size(call.channels())
                                     : kernels::packet_size(call.channels());
  const Tensor packet = empty({size}, {float64, call.x.device()});
  if (!call.is_synchronized) {
    call.kernels().moments(call.x, call.position_weights, packet);
    return packet;
  }
  kernels::PacketHeader header = make_header(call.id, Phase::forward, size);
  header.input_grad = will_be_recomputed() || call.needed.input;
  header.backward = runs_backward(call);
  call.kernels().moment_sums(call.x, call.position_weights, header, packet);
  return packet;
}

kernels::PacketHeader all_reduce(const Call& call, const Tensor& packet) {
  if (call.is_synchronized) start_all_reduce(packet, call.id, Phase::forward).wait();
  return read_header(call, packet);
}

kernels::PacketHeader read_header(const Call& call, const Tensor& packet) {
  if (call.is_synchronized)
    return checked_or_assumed_header(packet, call.id, Phase::forward,
                                     {.runs_backward = runs_backward(call)});
  if (!call.position_weights.defined()) return {.count = values_per_channel(call.x)};
  if (call.x.device().is_cpu()) return {.count = *packet.data<double>()};
  return {};
}

Statistics pending_statistics(const Call& call, const Tensor& packet,
                              const kernels::PacketHeader& header) {
  Statistics statistics = new_statistics(call);
  statistics.input_gradient_needed = header.input_grad > 0;
  statistics.is_pending = true;
  if (call.is_synchronized) {
    statistics.sums = packet;
    statistics.moments = empty({kernels::packet_size(call.channels())}, {float64, call.x.device()});
  } else {
    statistics.moments = packet;
  }
  return statistics;
}

void finalize_statistics(const Call& call, Statistics& statistics) {
  if (!statistics.is_pending) return;
  call.history->deferred_errors.report(
      call.x.device(), reported_call(call), [&](kernels::HeaderReport* report) {
        const Tensor& packet = statistics.sums.defined() ? statistics.sums : statistics.moments;
        if (report) call.kernels().report_header(packet, report);
        call.kernels().finalize_statistics(statistics.sums, statistics.moments,
                                           statistics_update(call), statistics.mean,
                                           statistics.rstd);
      });
  statistics = computed(statistics);
}

void remember(const Call& call, const Statistics& statistics) {
  if (call.args.group) ++call.history->synchronized_calls;  // also in a group of one rank
  if (auto* tape = autograd::RecomputeTape::current())
    tape->save(call.id.name, {statistics.mean, statistics.rstd, statistics.moments,
                              tensor({static_cast<double>(statistics.call_number),
                                      static_cast<double>(statistics.input_gradient_needed)},
                                     {float64})});
}

Statistics running_statistics(const Call& call) {
  const Statistics statistics = new_statistics(call);
  if (call.args.is_folded) {
    statistics.mean.fill_(0);
    statistics.rstd.fill_(1);
    return statistics;
  }
  call.kernels().running_statistics(call.args.running, call.args.eps, statistics.mean,
                                    statistics.rstd);
  return statistics;
}

Statistics saved_statistics(const Call& call) {
  const std::vector<Tensor> entry = autograd::RecomputeTape::current()->load(call.id.name);
  if (entry[0].numel() != call.channels())
    fail<Error>(
        "{}: the second run of recompute() has {} channels where the first one had {}; the "
        "function must do the same both times",
        to_string(call.id), call.channels(), entry[0].numel());
  const double* numbers = entry[3].data<double>();
  return {.mean = entry[0],
          .rstd = entry[1],
          .moments = entry[2],
          .call_number = static_cast<std::int64_t>(numbers[0]),
          .input_gradient_needed = numbers[1] != 0};
}

Output apply(const Call& call, const Statistics& statistics) {
  const kernels::Normalization normalization = normalization_of(call, statistics);
  const Tensor y = empty_like(call.x);
  if (!statistics.is_pending) {
    call.kernels().apply(call.x, normalization, y);
    return {y, statistics, normalization};
  }
  call.history->deferred_errors.report(
      call.x.device(), reported_call(call), [&](kernels::HeaderReport* report) {
        call.kernels().finalize_and_apply({.x = call.x,
                                           .sums = statistics.sums,
                                           .moments = statistics.moments,
                                           .update = statistics_update(call),
                                           .normalization = normalization,
                                           .y = y,
                                           .report = report});
      });
  return {y, computed(statistics), normalization};
}

Tensor record_backward(const Call& call, const Output& output) {
  BackwardContext context(call, output);
  const bool waits = context.all_reduces;
  autograd::record("batch_norm", output.y,
                   {call.input, call.args.weight, call.args.bias, call.args.residual},
                   [context = std::move(context)](const Tensor& dy) {
                     return batch_norm_backward(context, dy);
                   });
  if (waits) autograd::mark_waits_for_ranks(output.y);
  return output.y;
}

}  // namespace tutti::nn
