#include "deferred_errors.h"

#include "../../core/cuda/stream.h"

namespace tutti::nn {

void DeferredErrors::add(const Tensor& packet, const CallId& id, Phase phase, const Shape& input,
                         bool runs_backward) {
  const int device = packet.device().index();
  if (cuda::current_stream(device).is_capturing()) return;
  copies_.push_back({cuda::Readback(packet.raw(), device, sizeof(kernels::PacketHeader)), device,
                     id, phase, input, runs_backward});
}

void DeferredErrors::throw_arrived() {
  if (copies_.empty() || cuda::current_stream(copies_.front().device).is_capturing()) return;
  while (!copies_.empty() && copies_.front().header.arrived()) {
    const Copy copy = std::move(copies_.front());
    copies_.pop_front();
    try {
      check(copy);
    } catch (const Error& error) {
      if (copy.id.group && copy.id.group->size() > 1) copy.id.group->abort(error.what());
      throw;
    }
  }
}

void DeferredErrors::throw_all() {
  if (!copies_.empty()) copies_.back().header.wait("batch norm: headers of packets");
  throw_arrived();
}

void DeferredErrors::check(const Copy& copy) {
  kernels::PacketHeader header = *static_cast<const kernels::PacketHeader*>(copy.header.data());
  if (copy.id.group) check_copied_header(header, copy.id, copy.phase, copy.runs_backward);
  else header = {.count = header.count};  // Only the count is defined in moments.
  if (copy.phase == Phase::forward) expect_variance(header, copy.id, copy.input);
}

kernels::PacketHeader read_or_defer_header(const Tensor& packet, const CallId& id, Phase phase,
                                           const Shape& input, DeferredErrors& deferred,
                                           const OwnCall& own) {
  if (packet.device().is_cpu()) return checked_header(packet, id, phase, own);
  deferred.add(packet, id, phase, input, own.runs_backward);
  return {.input_grad = 1, .backward = 1};
}

}  // namespace tutti::nn
