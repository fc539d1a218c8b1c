#include "deferred_errors.h"

#include "../../core/cuda/stream.h"

#include <cstddef>
#include <utility>

namespace tutti::nn {

using kernels::HeaderReport;
using kernels::PacketHeader;

static_assert(offsetof(HeaderReport, arrived) == sizeof(PacketHeader) &&
                  sizeof(HeaderReport) == sizeof(PacketHeader) + sizeof(std::uint64_t),
              "the flag of a Readback follows its bytes");

void DeferredErrors::report(Device device, ReportedCall call,
                            const std::function<void(HeaderReport*)>& launch) {
  if (device.is_cpu() || cuda::current_stream(device.index()).is_capturing())
    return launch(nullptr);
  Report report{cuda::Readback(device.index(), sizeof(PacketHeader)), device.index(),
                std::move(call)};
  launch(static_cast<HeaderReport*>(report.header.device_data()));
  reports_.push_back(std::move(report));
}

void DeferredErrors::throw_arrived() {
  if (reports_.empty() || cuda::current_stream(reports_.front().device).is_capturing()) return;
  while (!reports_.empty() && reports_.front().header.arrived()) {
    const Report report = std::move(reports_.front());
    reports_.pop_front();
    try {
      check(report);
    } catch (const Error& error) {
      const std::optional<ProcessGroup>& group = report.call.id.group;
      if (group && group->size() > 1) group->abort(error.what());
      throw;
    }
  }
}

void DeferredErrors::throw_all() {
  // A layer that ran on two streams has reports that no single stream orders.
  for (const Report& report : reports_) report.header.wait("batch norm: headers of packets");
  throw_arrived();
}

void DeferredErrors::check(const Report& report) {
  const auto& [id, phase, input, runs_backward] = report.call;
  PacketHeader header = *static_cast<const PacketHeader*>(report.header.data());
  if (id.group) check_copied_header(header, id, phase, runs_backward);
  else header = {.count = header.count};  // Only the count is defined in moments.
  if (phase == Phase::forward) expect_variance(header, id, input);
}

PacketHeader checked_or_assumed_header(const Tensor& packet, const CallId& id, Phase phase,
                                       const CallDetails& own) {
  if (packet.device().is_cpu()) return checked_header(packet, id, phase, own);
  return {.input_grad = 1, .backward = 1};
}

}  // namespace tutti::nn
