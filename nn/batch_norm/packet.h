// A packet is the tensor that the ranks of a SyncBatchNorm add up: a header and sums for every
// channel (kernels/batch_norm.h). The header tells the other ranks, without a collective of its
// own, which call a rank is at and whether it will run a backward. This file makes headers, starts
// the all-reduce and checks the summed header, at once on the CPU and later on a device; the
// kernels compute the sums.
#pragma once

#include "../../core/cuda/pinned_memory.h"
#include "../../distributed/process_group.h"
#include "../../kernels/batch_norm.h"

#include <deque>
#include <functional>
#include <optional>
#include <string>

namespace tutti::nn {

/// Names one call of one layer, for errors and for the check that all ranks are at the same call.
struct CallId {
  std::string name;                        ///< "SyncBatchNorm 'layer1.bn1'"
  std::optional<ProcessGroup> group = {};  ///< the ranks that share statistics, if there are any
  std::int64_t number = 0;  ///< counts the forwards of a layer with a group in training, from 1
  /// What else the ranks compare: dtype of the input, options and number of the layer, as
  /// CallOptions::step. Empty in a refusal and in a call of one rank.
  std::string traits = {};
};

/// Returns "SyncBatchNorm 'layer1.bn1' forward #41 on rank 2 of 4", the beginning of every error.
std::string to_string(const CallId& id);

/// The phase of a call that a packet belongs to.
enum class Phase { forward, backward };

/// Returns the header of a packet of `elements` numbers, with the fingerprint of the call. The
/// kernels write the count.
kernels::PacketHeader make_header(const CallId& id, Phase phase, std::int64_t elements);

/// Writes a header into a packet on any device.
void write_header(const Tensor& packet, const kernels::PacketHeader& header);

/// A packet of a call, and what its rank says about it where the headers do not fit together.
struct PacketCall {
  CallId id;  ///< Without a group the packet has not been all-reduced: only its count is checked.
  Phase phase;
  bool runs_backward = true;  ///< whether this rank will run a backward (forward only)
  Shape input = {};           ///< the shape of x, for the error of a count of 1
};

/// Sums a packet over the ranks in place, by one all-reduce on the group's communicator for
/// normalisation, in which the group compares the calls of the ranks, and returns the summed
/// header. `meanwhile` runs while the packet travels. Throws a DistributedError on every rank if,
/// in a forward, only some ranks will run a backward that others need; one more collective then
/// gathers which ranks will. For a packet in device memory the result holds what the host must
/// assume: the count is unknown (0), some rank needs the gradient of its input, and ranks will run
/// a backward. The kernel that reads the packet then reports the header to DeferredErrors.
kernels::PacketHeader all_reduce_packet(const Tensor& packet, const CallId& id, Phase phase,
                                        bool runs_backward = true,
                                        const std::function<void()>& meanwhile = {});

/// Checks a host copy of the header of a summed packet in device memory. Throws a DistributedError
/// on every rank if the ranks are not at the same layer, call, phase and number of channels; it
/// cannot name the calls of the other ranks, which only one more collective could gather. In a
/// forward it also throws if some, but not all, ranks will run a backward; the error says what this
/// rank will do.
///
/// Ranks compare calls by a fingerprint h of 20 bits. The header sums h and h^2 over W ranks, and
/// W sum(h^2) = sum(h)^2 holds only if all h are equal. The test is exact in float64 for up to
/// 4,096 ranks. Two calls have the same fingerprint, and go undetected, once in a million.
void check_copied_header(const kernels::PacketHeader& header, const PacketCall& call);

/// Throws ShapeError if the header of a whole batch counts one value per channel, or weights that
/// sum to 1 or less: such a batch has no unbiased variance. An empty batch passes.
void expect_variance(const kernels::PacketHeader& header, const CallId& id, const Shape& input);

/// Refuses the collective of a forward that this rank cannot run (ProcessGroup::refuse), so that
/// the other ranks get an error at once instead of at their deadline. That error contains `why`,
/// the message of the error that this rank is about to throw. Throws nothing.
void announce_refusal(const CallId& id, const std::string& why);

/// Collects the headers of one layer's packets in device memory, which kernels report to the host,
/// so that the host can check them later without waiting. The device checks the same headers itself
/// and leaves the running statistics unchanged if a check fails; the host throws the error when the
/// report has arrived.
class DeferredErrors {
 public:
  /// Calls launch(report), which launches a kernel on `device` (CUDA) that writes the header of a
  /// packet to `report`, and keeps the report with what `call` returns. While a CUDA graph is
  /// captured nothing is reported, and `report` is null.
  void report(Device device, const std::function<PacketCall()>& call,
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
    PacketCall call;
  };
  static void check(const Report& report);

  std::deque<Report> reports_;
};

}  // namespace tutti::nn
