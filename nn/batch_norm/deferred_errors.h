// DeferredErrors collects copies of the headers of packets in device memory, so that the host can
// check them later without waiting. The device checks the same headers itself and leaves the
// running statistics unchanged if a check fails; the host throws the error when the copy has
// arrived. packet.h has the checks.
#pragma once

#include "../../core/cuda/readback.h"
#include "packet.h"

#include <deque>

namespace tutti::nn {

/// The errors that the device may find in earlier calls of one layer.
class DeferredErrors {
 public:
  /// Enqueues a copy of the header of a packet in device memory and does not wait for it. If `id`
  /// has no group, the packet has not been all-reduced and only its count is checked. Does nothing
  /// while a CUDA graph is captured. `runs_backward` is that of OwnCall.
  void add(const Tensor& packet, const CallId& id, Phase phase, const Shape& input,
           bool runs_backward);
  /// Checks the headers that have arrived and throws the error of the oldest one that fails. It
  /// first aborts the group of that call, since the other ranks may wait in any collective by now.
  /// Never waits; does nothing while a CUDA graph is captured.
  void throw_arrived();
  /// Waits for the device, then checks all copies like throw_arrived().
  void throw_all();

 private:
  struct Copy {
    cuda::Readback header;
    int device;
    CallId id;
    Phase phase;
    Shape input;
    bool runs_backward;
  };
  static void check(const Copy& copy);

  std::deque<Copy> copies_;
};

/// Returns the header of a packet that has been summed over the ranks. A packet in host memory is
/// checked at once. For a packet in device memory the check is deferred, and the result holds what
/// the host must assume: the count is unknown (0), some rank needs the gradient of its input, and
/// ranks will run a backward.
kernels::PacketHeader read_or_defer_header(const Tensor& packet, const CallId& id, Phase phase,
                                           const Shape& input, DeferredErrors& deferred,
                                           const OwnCall& own = {});

}  // namespace tutti::nn
