// What the ranks of a SyncBatchNorm tell each other beside the statistics, in the header of the
// same packet and so at no extra collective: where each of them is (layer, call, phase, channels)
// and whether it will need a backward. On the CPU what they say is looked at at once; on a device
// it stays there, and a copy is looked at when it has come (LateHeaders).
#pragma once

#include "../../core/cuda/readback.h"
#include "../../core/tensor.h"
#include "functional.h"

#include <deque>

namespace tutti::nn {

/// `refused`: a rank that does not run this forward, because its arguments are wrong; see
/// announce_refusal.
enum class Phase { forward, refused, backward };

/// What one rank announces; after the all-reduce, sums over the ranks.
struct Expectation {
  bool input_grad = false;  ///< will need the gradient of its input, which takes a collective
  bool backward = false;    ///< will run a backward at all, and so can take part in that collective
};

struct PacketHeader {
  double count = 0;       ///< elements per channel
  double input_grad = 0;  ///< ranks
  double backward = 0;
};

/// What the kernels write into a packet of so many numbers.
kernels::PacketHeader message_of(const StatisticsSync& sync, const std::string& name, Phase phase,
                                 Expectation expectation, std::int64_t packet_elements);
/// The same from the host, with a count of 0.
void write_header(const Tensor& packet, const StatisticsSync& sync, const std::string& name,
                  Phase phase, Expectation expectation);

/// Starts to sum the packet over the ranks, on the group's own communicator for normalisation.
/// `others`: how many more layers' packets lie behind that of this one.
distributed::Work reduce_packet(const Tensor& packet, const StatisticsSync& sync,
                                const std::string& name, Phase phase, std::size_t others = 0);

/// Reads the header of a packet in host memory. Throws a DistributedError on every rank, naming
/// what each rank is at, where the reduced packet shows that they are not at the same layer, call,
/// phase and number of channels, or (forward) that only some of them will run the backward that
/// others need. The first is found by a fingerprint h of 20 bits, of which h and h^2 were summed: W
/// sum(h^2) = sum(h)^2 holds for equal h only, and is exact in float64 for up to 4,096 ranks. A
/// collision (1 in a million) goes undetected.
PacketHeader expect_agreement(const Tensor& packet, const StatisticsSync& sync,
                              const std::string& name, Phase phase);

/// The headers of packets on a CUDA device, on their way to the host. The device itself moves no
/// running statistics where ranks do not agree or where there is one element per channel; who is
/// told here hears of it late, but never waits.
class LateHeaders {
 public:
  /// Enqueues the copy of a header that has been summed over `sync`, where there is one. Nothing
  /// inside of a CUDA graph.
  void add(const Tensor& packet, const std::optional<StatisticsSync>& sync, const std::string& name,
           Phase phase, const Shape& input);
  /// Throws what those that have come have to say, the first first; with several ranks their group
  /// is aborted, since by now the others may be anywhere. Does nothing inside of a CUDA graph.
  void look();
  /// The same for all of them: waits for the device.
  void wait();

 private:
  struct Header {
    cuda::Readback values;
    int device;
    std::optional<StatisticsSync> sync;
    std::string name;
    Phase phase;
    Shape input;
  };
  static void check(const Header& header);

  std::deque<Header> headers_;
};

/// Takes part in the collective of a forward that this rank cannot run, so that the others get an
/// error now instead of at their deadline. Where every rank refuses, nothing is broken. Never
/// throws: this rank has an error of its own.
void announce_refusal(const StatisticsSync& sync, const std::string& name,
                      std::int64_t packet_elements, Device device);

}  // namespace tutti::nn
