// This file holds the device code that turns the moments of a channel into outputs: it writes them
// into a packet (as moments, or as sums for the all-reduce), writes mean and rstd, and updates the
// running statistics. Every output is optional, so that one launch can compute whatever its caller
// needs. The formulas are in kernels/batch_norm_math.h.
#pragma once

#include "batch_norm_channels.h"
#include "batch_norm_geometry.h"
#include "batch_norm_reduction.h"

namespace tutti::kernels::cuda {

/// The outputs that a kernel writes for each channel. A null pointer means that the output is not
/// wanted.
struct Statistics {
  std::int64_t channels = 0;
  double *moments = nullptr, *sums = nullptr;  ///< Packets.
  bool exact = false;                          ///< True if sums have high and low parts.
  PacketHeader header = {};                    ///< The header of the sums, except for the count.
  /// The number of ranks whose fingerprints must agree; if they do not, the running statistics are
  /// not updated. 0 turns the check off.
  double ranks = 0;
  double *mean = nullptr, *rstd = nullptr;
  Epsilon eps = {};
  void *running_mean = nullptr, *running_var = nullptr;
  bool running_wide = false;
  std::int64_t* batches = nullptr;
  double* elements = nullptr;
  Tracking tracking = Tracking::momentum;
  double momentum = 0;
};

/// Writes the sums of channel c from its moments over n elements; for channel 0 the header, too.
__device__ inline void put_sums(const Statistics& to, std::int64_t c, double n,
                                ChannelMoments moments) {
  double* of = to.sums + packet_header_size + c;
  const std::int64_t C = to.channels;
  if (!to.exact) {
    if (c == 0) put_header(to.sums, to.header, n, 0);
    const ChannelSums sums = sums_of(n, moments);
    of[0] = sums.first;
    of[C] = sums.second;
    return;
  }
  if (c == 0) {
    const DoubleDouble count = split({n, 0});
    put_header(to.sums, to.header, count.high, count.low);
  }
  const ExactChannelSums sums = exact_sums_of(n, moments);
  of[0] = sums.first.high;
  of[C] = sums.second.high;
  of[2 * C] = sums.first.low;
  of[3 * C] = sums.second.low;
}

/// A packet from which a kernel computes the statistics of the whole batch.
struct StatisticsPacket {
  enum class Kind { sums, exact_sums, moments };
  const double* data = nullptr;  ///< Null means that mean and rstd have been computed already.
  Kind kind = Kind::sums;
};

/// Returns the count of a packet. That of exact sums has a low part.
__device__ inline DoubleDouble count_of(const StatisticsPacket& from) {
  const PacketHeader& header = header_of(from.data);
  return from.kind == StatisticsPacket::Kind::exact_sums ? exact_sum(header.count, header.count_low)
                                                         : DoubleDouble{header.count, 0};
}

/// Returns the moments of channel c of C, given the count of the packet.
__device__ inline ChannelMoments get_moments(const StatisticsPacket& from, DoubleDouble count,
                                             std::int64_t C, std::int64_t c) {
  const double* of = from.data + packet_header_size + c;
  switch (from.kind) {
    case StatisticsPacket::Kind::moments: return {of[0], of[C]};
    case StatisticsPacket::Kind::exact_sums:
      return moments_of(count, ExactChannelSums{{of[0], of[2 * C]}, {of[C], of[3 * C]}});
    default: return moments_of(count.high > 0 ? 1 / count.high : 0, ChannelSums{of[0], of[C]});
  }
}

/// Turns off the update of the running statistics if the ranks that made the packet were not at the
/// same call.
__device__ inline void check_ranks(const StatisticsPacket& from, Statistics& to) {
  if (from.kind == StatisticsPacket::Kind::moments || !(to.ranks > 0)) return;
  const PacketHeader& header = header_of(from.data);
  if (!fingerprints_agree(header.fingerprint, header.fingerprint_squared, to.ranks))
    to.running_mean = nullptr;
}

/// The counters of the running statistics before this update. Every thread that calls
/// put_statistics() must read them before put_counters() changes them.
struct Counters {
  std::int64_t batches = 0;
  double elements = 0;
};

__device__ inline Counters read_counters(const Statistics& to) {
  return {to.batches ? *to.batches : 0, to.elements ? *to.elements : 0};
}

/// Updates the running mean and variance of channel c with its moments over a batch of n elements.
__device__ inline void put_running(const Statistics& to, const Counters& before, std::int64_t c,
                                   double n, ChannelMoments batch) {
  const Target means{to.running_mean, to.running_wide}, vars{to.running_var, to.running_wide};
  const RunningMoments old{Values{to.running_mean, to.running_wide, 0}[c],
                           Values{to.running_var, to.running_wide, 0}[c]};
  const RunningMoments next =
      to.tracking == Tracking::pooled
          ? pooled(old, before.elements, n, batch)
          : moved(old, fraction_of(to.tracking, to.momentum, before.batches + 1), n, batch);
  means.put(c, next.mean);
  vars.put(c, next.var);
}

/// Writes all outputs of channel c except the counters. Exactly one thread, of any block, must call
/// it for each channel.
__device__ inline void put_statistics(const Statistics& to, const Counters& before, std::int64_t c,
                                      double n, ChannelMoments moments) {
  if (to.moments) {
    if (c == 0) to.moments[0] = n;
    to.moments[packet_header_size + c] = moments.mean;
    to.moments[packet_header_size + to.channels + c] = moments.m2;
  }
  if (to.sums) put_sums(to, c, n, moments);
  if (to.mean) {
    to.mean[c] = moments.mean;
    to.rstd[c] = rstd_of(n > 0 ? moments.m2 * (1 / n) : 0, to.eps);
  }
  if (to.running_mean && n > 1) put_running(to, before, c, n, moments);
}

/// Advances the counters of the running statistics by one batch of n elements. Exactly one thread
/// must call it, after all threads have called read_counters().
__device__ inline void put_counters(const Statistics& to, const Counters& before, double n) {
  if (!to.running_mean || !(n > 1)) return;
  *to.batches = before.batches + 1;
  if (to.elements) *to.elements = before.elements + n;
}

// ---- host side

/// Returns the Statistics that write `moments`, `mean`, `rstd` and the running statistics of
/// `update`.
inline Statistics statistics_of(const Tensor& moments, std::int64_t channels,
                                const StatisticsUpdate& update, const Tensor& mean,
                                const Tensor& rstd) {
  Statistics to{.channels = channels,
                .moments = moments.data<double>(),
                .ranks = update.ranks,
                .mean = mean.data<double>(),
                .rstd = rstd.data<double>(),
                .eps = update.eps,
                .tracking = update.tracking,
                .momentum = update.momentum};
  const RunningStatistics& running = update.running;
  if (!running.mean.defined()) return to;
  to.running_mean = running.mean.raw();
  to.running_var = running.var.raw();
  to.running_wide = running.mean.dtype() == float64;
  to.batches = running.batches.data<std::int64_t>();
  to.elements = to.tracking == Tracking::pooled ? running.elements.data<double>() : nullptr;
  return to;
}

/// Returns the packet that finalize_statistics and finalize_and_apply read.
inline StatisticsPacket packet_of(const Tensor& sums, const Tensor& moments) {
  using Kind = StatisticsPacket::Kind;
  if (!sums.defined()) return {moments.data<double>(), Kind::moments};
  const bool exact = sums.numel() != packet_size(packet_channels(moments));
  return {sums.data<double>(), exact ? Kind::exact_sums : Kind::sums};
}

/// Computes the moments of x, weighted with the position weights if these are defined, and writes
/// the outputs that `to` asks for, in one launch.
void launch_moments(const Tensor& x, const Tensor& weights, const Statistics& to);

}  // namespace tutti::kernels::cuda
