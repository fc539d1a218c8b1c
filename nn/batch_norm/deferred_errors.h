// DeferredErrors collects the headers of packets in device memory, which kernels report to the
// host, so that the host can check them later without waiting. The device checks the same headers
// itself and leaves the running statistics unchanged if a check fails; the host throws the error
// when the report has arrived. packet.h has the checks.
#pragma once

#include "../../core/cuda/pinned_memory.h"
#include "packet.h"

#include <deque>
#include <functional>

namespace tutti::nn {

/// The call whose header a kernel reports.
struct ReportedCall {
  CallId id;  ///< Without a group the packet has not been all-reduced: only its count is checked.
  Phase phase;
  Shape input;
  bool runs_backward = true;  ///< as in CallDetails
};

/// The errors that the device may find in earlier calls of one layer.
class DeferredErrors {
 public:
  /// Calls launch(report), which launches a kernel on `device` that writes the header of a packet
  /// to `report`, and keeps the report. On the CPU and while a CUDA graph is captured nothing is
  /// reported, and `report` is null.
  void report(Device device, ReportedCall call,
              const std::function<void(kernels::HeaderReport*)>& launch);
  /// Checks the headers that have arrived and throws the error of the oldest one that fails. It
  /// first aborts the group of that call, since the other ranks may wait in any collective by now.
  /// Never waits; does nothing while a CUDA graph is captured.
  void throw_arrived();
  /// Waits for the device, then checks all headers like throw_arrived().
  void throw_all();

 private:
  struct Report {
    cuda::Readback header;
    int device;
    ReportedCall call;
  };
  static void check(const Report& report);

  std::deque<Report> reports_;
};

/// Returns the header of a packet that has been summed over the ranks. A packet in host memory is
/// checked at once. For a packet in device memory the result holds what the host must assume: the
/// count is unknown (0), some rank needs the gradient of its input, and ranks will run a backward.
/// The kernel that reads the packet then reports the header to DeferredErrors.
kernels::PacketHeader checked_or_assumed_header(const Tensor& packet, const CallId& id, Phase phase,
                                                const CallDetails& own = {});

}  // namespace tutti::nn
