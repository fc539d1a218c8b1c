// DeferredErrors holds what a CUDA device still has to tell the host about earlier calls of a
// layer. A device checks the headers of packets itself and leaves the running statistics as they
// are where a check fails; the host gets a copy of each header and throws when it sees it. What is
// wrong with a header is the business of packet.h.
#pragma once

#include "../../core/cuda/readback.h"
#include "packet.h"

#include <deque>

namespace tutti::nn {

class DeferredErrors {
 public:
  /// Enqueues a copy of the header of a packet in device memory; does not wait for it. An `id`
  /// without a group means that no ranks have exchanged anything, so that only the count is
  /// checked. Does nothing while a CUDA graph is captured.
  void add(const Tensor& packet, const CallId& id, Phase phase, const Shape& input);
  /// Checks the copies that have arrived, the oldest first, and throws the first error. It aborts
  /// the group of that call then, since the other ranks may be anywhere by now. Never waits; does
  /// nothing while a CUDA graph is captured.
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
  };
  static void check(const Copy& copy);

  std::deque<Copy> copies_;
};

/// Reads the header of a packet that the ranks have summed. In host memory that happens at once;
/// for a device the errors are deferred, and the result says what the host may assume: the count is
/// unknown (0), and some rank needs the gradient of its input.
kernels::PacketHeader read_or_defer_header(const Tensor& packet, const CallId& id, Phase phase,
                                           const Shape& input, DeferredErrors& deferred);

}  // namespace tutti::nn
