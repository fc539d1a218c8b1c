// The forward of batch norm for one layer, and below it the steps that it takes.
#include "call.h"

#include "../../autograd/record.h"
#include "../../core/create.h"

namespace tutti::nn {
namespace {

Tensor local_sums(const Call& call);
kernels::PacketHeader all_reduce(const Call& call, const Tensor& packet);
Output normalize_by_running_statistics(const Call& call);
Output finalize_and_apply(const Call& call, const Tensor& packet,
                          const kernels::PacketHeader& header);

}  // namespace

Tensor batch_norm(const Tensor& x, const BatchNormArgs& args) {
  return batch_norm(x, args, std::make_shared<CallHistory>());
}

Tensor batch_norm(const Tensor& x, const BatchNormArgs& args,
                  const std::shared_ptr<CallHistory>& history) {
  const Call call = checked_call(x, args, history);  // An error reaches the other ranks too.
  if (history->observe) history->observe(call.x, call.position_weights);
  if (!args.use_batch_statistics) {
    const bool is_identity = args.is_folded && !args.relu && !args.residual.defined();
    return is_identity ? x : record_backward(call, normalize_by_running_statistics(call));
  }

  // One collective adds up the sums of every channel over all ranks. A rank alone computes its own
  // moments instead, and exchanges nothing.
  const Tensor packet = local_sums(call);
  const kernels::PacketHeader header = all_reduce(call, packet);
  expect_variance(header, call.id, call.x.shape());

  // One kernel computes mean and 1 / sqrt(var + eps), updates the running statistics and
  // normalises.
  const Output output = finalize_and_apply(call, packet, header);
  if (args.group) ++history->synchronized_calls;  // also in a group of one rank
  return record_backward(call, output);
}

namespace {

// Returns how the kernels update the running statistics. Marks these as changed in place, because
// autograd would not notice a kernel's writes.
kernels::StatisticsUpdate statistics_update(const Call& call) {
  const BatchNormArgs& args = call.args;
  kernels::StatisticsUpdate update{.eps = args.eps};
  if (call.is_synchronized && !call.x.device().is_cpu()) update.ranks = args.group->size();
  if (!args.update_running || !args.running.mean.defined()) return update;
  update.tracking = args.tracking;
  update.momentum = args.momentum;
  update.running = args.running;
  for (const Tensor* changed :
       {&args.running.mean, &args.running.var, &args.running.batches, &args.running.elements})
    if (changed->defined()) changed->storage()->bump_version();
  return update;
}

// Returns the arguments of the kernels that compute the output, with new tensors for mean and rstd.
// After a residual, the backward reads from a mask where the ReLU passed values; on a device whose
// mask_size() is 0 it reads y instead.
kernels::Normalization new_normalization(const Call& call) {
  const auto per_channel = [&] { return empty({call.channels()}, {float64, call.x.device()}); };
  const auto dense_or_undefined = [](const Tensor& t, MemoryFormat format) {
    return t.defined() ? dense(t, format) : Tensor();
  };
  const BatchNormArgs& args = call.args;
  const bool is_masked = call.needed.any() && args.relu && args.residual.defined();
  const std::int64_t mask_bytes = is_masked ? call.kernels().mask_size(call.x) : 0;
  return {.mean = per_channel(),
          .rstd = per_channel(),
          .weight = dense_or_undefined(args.weight, MemoryFormat::contiguous),
          .bias = dense_or_undefined(args.bias, MemoryFormat::contiguous),
          .residual = dense_or_undefined(args.residual, format_of(call.x)),
          .relu = args.relu,
          .mask = mask_bytes > 0 ? empty({mask_bytes}, {uint8, call.x.device()}) : Tensor()};
}

// Computes the packet of this rank. In a synchronised call it holds sums, which can be added over
// the ranks. In any other call it holds moments, and this rank's batch is the whole batch.
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
  kernels::PacketHeader header;  // On the CPU the group compares the calls of the ranks.
  if (!call.x.device().is_cpu()) header = make_header(call.id, Phase::forward, size);
  header.input_grad = call.needed.input;
  header.backward = call.needed.any();
  call.kernels().moment_sums(call.x, call.position_weights, header, packet);
  return packet;
}

// Adds the packets of all ranks in place, by one collective, and returns the summed header. The
// packet of a call that is not synchronised does not change.
kernels::PacketHeader all_reduce(const Call& call, const Tensor& packet) {
  if (call.is_synchronized)
    return all_reduce_packet(packet, call.id, Phase::forward, call.needed.any());
  if (!call.position_weights.defined())
    return {.count = static_cast<double>(call.x.numel()) / static_cast<double>(call.channels())};
  if (call.x.device().is_cpu()) return {.count = *packet.data<double>()};
  return {};
}

// Computes the statistics of the whole batch from its packet, moves the running ones, and
// normalises x.
Output finalize_and_apply(const Call& call, const Tensor& packet,
                          const kernels::PacketHeader& header) {
  const std::int64_t size = kernels::packet_size(call.channels());
  const Output output{
      .y = empty_like(call.x),
      .normalization = new_normalization(call),
      .moments = call.is_synchronized ? empty({size}, {float64, call.x.device()}) : packet,
      .input_gradient_needed = header.input_grad > 0};
  const auto launch = [&](kernels::HeaderReport* report) {
    call.kernels().finalize_and_apply({.x = call.x,
                                       .sums = call.is_synchronized ? packet : Tensor(),
                                       .moments = output.moments,
                                       .update = statistics_update(call),
                                       .normalization = output.normalization,
                                       .y = output.y,
                                       .report = report});
  };
  const auto packet_call = [&] {  // a batch of one rank has no group to check
    return PacketCall{.id = call.is_synchronized ? call.id : CallId{.name = call.id.name},
                      .phase = Phase::forward,
                      .runs_backward = call.needed.any(),
                      .input = call.x.shape()};
  };
  // The host knows the header of any other call.
  if (!call.x.device().is_cpu() && (call.is_synchronized || call.position_weights.defined()))
    call.history->deferred_errors.report(call.x.device(), packet_call, launch);
  else launch(nullptr);
  return output;
}

// Computes mean and rstd from the running statistics, and normalises x (evaluation).
Output normalize_by_running_statistics(const Call& call) {
  const Output output{.y = empty_like(call.x), .normalization = new_normalization(call)};
  const Tensor &mean = output.normalization.mean, &rstd = output.normalization.rstd;
  if (call.args.is_folded) {
    mean.fill_(0);
    rstd.fill_(1);
  } else {
    call.kernels().running_statistics(call.args.running, call.args.eps, mean, rstd);
  }
  call.kernels().apply(call.x, output.normalization, output.y);
  return output;
}

}  // namespace

}  // namespace tutti::nn
