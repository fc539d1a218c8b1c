// The kernels of batch normalisation that every device provides: the local halves of forward and
// backward. The collectives between the halves belong to the layer (nn/batch_norm), so every value
// that crosses from one half to the other stays in device memory, in a packet; the host reads
// nothing back. The formulas that all devices share stand in batch_norm_math.h.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The first eight numbers of a packet, as they lie in memory. Ranks compare them in the same
/// all-reduce that adds up their sums: moment_sums and gradient_sums write them, and
/// finalize_statistics, finalize_and_apply and the layer read them.
struct PacketHeader {
  double count = 0;                ///< Elements per channel, or the sum of their position weights.
  double count_low = 0;            ///< The low part of `count` in exact sums, else 0.
  double input_grad = 0;           ///< 1 if this rank needs the gradient of its input, else 0.
  double backward = 0;             ///< 1 if this rank runs a backward pass, else 0.
  double fingerprint = 0;          ///< h, which encodes the layer, call and phase this rank is at.
  double fingerprint_squared = 0;  ///< h^2.
  double unused[2] = {0, 0};
};
/// The size of a PacketHeader, in float64 numbers.
inline constexpr std::int64_t packet_header_size = sizeof(PacketHeader) / sizeof(double);

/// A copy of a header that a kernel writes for the host, as it lies in the memory of a
/// cuda::Readback.
struct HeaderReport {
  PacketHeader header;
  std::uint64_t arrived = 0;  ///< 1 as soon as `header` is complete.
};

/// A packet is the tensor that kernels and ranks exchange. It is dense, of dtype float64, and
/// begins with a PacketHeader. Two numbers for every channel follow, C of the first kind and then C
/// of the second:
///   moments         mean, M2 (the sum of squared deviations from the mean)
///   sums            n mean, M2 + n mean^2
///   gradient sums   sum dy, sum dy (x - mean)
/// Sums and gradient sums may be added over ranks. In moments only `count` of the header is
/// defined; in sums all of it is.
inline std::int64_t packet_size(std::int64_t channels) { return packet_header_size + 2 * channels; }

/// Returns the number of channels of a packet that is not of exact sums.
inline std::int64_t packet_channels(const Tensor& packet) {
  return (packet.numel() - packet_header_size) / 2;
}

/// Exact sums have more bits than a double, because M2 is recovered from M2 + n mean^2 by a
/// subtraction that cancels leading digits. The count and both sums are split into a high part of
/// 26 bits and a low part, and C numbers follow of each kind:
///   exact sums      n mean high, M2 + n mean^2 high, n mean low, M2 + n mean^2 low
/// The high parts of the ranks add up without rounding as long as the ratio of the largest to the
/// smallest, times the number of ranks, stays below 2^27.
inline std::int64_t exact_packet_size(std::int64_t channels) {
  return packet_header_size + 4 * channels;
}

/// The epsilon in rstd = 1 / sqrt(var + value), or 1 / sqrt(max(var, value)) if `floor` is set. If
/// the variance is NaN, so is rstd.
struct Epsilon {
  double value = 1e-5;
  bool floor = false;
};

/// The rule by which running statistics move towards the statistics of a batch.
enum class Tracking {
  momentum,    ///< They move by a fixed fraction (an exponential moving average).
  cumulative,  ///< They are the plain average over all batches (PyTorch's momentum=None).
  pooled       ///< They are weighted by counts, as if all batches had been one batch.
};

/// The running statistics of a layer and their counts.
struct RunningStatistics {
  Tensor mean, var;  ///< float32 or float64, [C]; `var` is unbiased.
  Tensor batches;    ///< int64, (): how many batches have been tracked.
  /// float64, (): elements per channel so far, or the sum of their weights. Only Tracking::pooled
  /// needs it.
  Tensor elements;
};

/// The options by which finalize_statistics computes mean and rstd from moments and updates the
/// running statistics.
struct StatisticsUpdate {
  Epsilon eps = {};
  Tracking tracking = Tracking::momentum;
  double momentum = 0.1;
  RunningStatistics running = {};  ///< Undefined tensors mean that there are none to update.
  /// The number of ranks whose sums were added. If their fingerprints disagree, the running
  /// statistics do not change. 0 skips the comparison.
  double ranks = 0;
};

/// The map from x to the output: z = (x - mean) rstd weight + bias + residual, then max(z, 0) if
/// `relu` is set.
///
/// After a residual, the backward kernels cannot compute from x which elements the ReLU has passed.
/// If mask_size(x) is above 0, they read this from `mask`: apply and finalize_and_apply write one
/// bit per element, 1 where the output is above 0 or NaN, in an order that the device chooses. On
/// other devices they read SavedForward::output.
struct Normalization {
  Tensor mean, rstd;     ///< float64, [C]
  Tensor weight, bias;   ///< float32 or float64, [C]; undefined means 1 and 0.
  Tensor residual = {};  ///< Like x; undefined means none.
  bool relu = false;
  Tensor mask = {};  ///< uint8, [mask_size(x)]; undefined if no backward will need it.
};

/// The arguments of finalize_and_apply: those of finalize_statistics and of apply.
struct ForwardFromSums {
  Tensor x;
  Tensor sums;     ///< As in finalize_statistics, but not `moments` itself.
  Tensor moments;  ///< Output; an input if `sums` is undefined.
  StatisticsUpdate update = {};
  Normalization normalization;  ///< Mean, rstd and mask are outputs.
  Tensor y;                     ///< Output.
  /// Output, if not null: the header of `sums`, or the count of `moments` if `sums` is undefined,
  /// at an address of the device.
  HeaderReport* report = nullptr;
};

/// The values that a forward pass saves for the backward kernels.
struct SavedForward {
  /// Kernels use only whether its `residual` is defined, not its values.
  Normalization normalization;
  Tensor x;
  Tensor output = {};  ///< Needed if a ReLU followed a residual and mask_size(x) is 0.
  /// Whether positions have weights. If so, x may hold anything, NaN included, where the gradient
  /// is 0.
  bool weighted = false;
};

/// The arguments of gradient_sums.
struct GradientSums {
  Tensor dy;
  SavedForward saved;
  PacketHeader header = {};  ///< Written into `sums`, with a count of 0.
  Tensor sums;               ///< Output: this rank's gradient sums, [packet_size(C)].
  /// Output, if defined: dy with zeros where the ReLU passed nothing, which is the gradient of the
  /// residual. May be dy itself.
  Tensor masked_dy = {};
  Tensor weight_grad = {};  ///< Output, if defined: this rank's share, [C].
  Tensor bias_grad = {};    ///< Output, if defined: this rank's share, [C].
};

/// The arguments of apply_grad. Where the position weight is 0, dx depends on x only through the
/// ReLU.
struct InputGradient {
  Tensor dy;
  SavedForward saved;
  /// Gradient sums over all ranks. Undefined means that mean and rstd are constants, as running
  /// statistics are.
  Tensor sums = {};
  Tensor moments = {};  ///< Moments over all ranks; defined if `sums` is.
  Tensor position_weights = {};
  Epsilon eps = {};
  Tensor dx = {};  ///< Output, if defined; may be dy itself.
  /// Output, if not null: the header of `sums`, at an address of the device.
  HeaderReport* report = nullptr;
};

/// The table of a device's batch-norm kernels.
///
/// The activations x, y, dy and residual and their gradients have shape (N, C, ...) and one dtype,
/// and are dense in one and the same memory format; empty ones are legal. `position_weights` is
/// float32 or float64, dense, of shape (N, ...) without C; undefined means that every position
/// weighs 1. Where a position weighs 0, x has no influence on moments, even if it is NaN. Mean and
/// rstd are float64 tensors of shape [C]. On the CPU results do not depend on the number of
/// threads.
struct BatchNorm {
  /// Writes count, mean and M2 of this rank's x.
  void (*moments)(const Tensor& x, const Tensor& position_weights, const Tensor& moments);
  /// Writes this rank's moments as sums, with `header` and the count in front. The sums are exact
  /// if `sums` has exact_packet_size(C) elements, and not if it has packet_size(C).
  void (*moment_sums)(const Tensor& x, const Tensor& position_weights, const PacketHeader& header,
                      const Tensor& sums);
  /// Computes moments, mean and rstd from `sums` over all ranks, and updates the running
  /// statistics. `sums` may be `moments` itself; if it is undefined, `moments` is an input. A count
  /// of 0 makes moments of 0. If the count is at most 1 or the fingerprints of the ranks disagree,
  /// the running statistics do not change.
  void (*finalize_statistics)(const Tensor& sums, const Tensor& moments,
                              const StatisticsUpdate& update, const Tensor& mean,
                              const Tensor& rstd);
  /// Writes mean and rstd of the running statistics.
  void (*running_statistics)(const RunningStatistics& running, Epsilon eps, const Tensor& mean,
                             const Tensor& rstd);
  /// Returns the size of Normalization::mask in bytes for an output like x; 0 on a device that
  /// reads the output instead.
  std::int64_t (*mask_size)(const Tensor& x);
  /// Writes y, and the mask if it is defined.
  void (*apply)(const Tensor& x, const Normalization& normalization, const Tensor& y);
  /// Runs finalize_statistics and apply, in as few launches as the device can.
  void (*finalize_and_apply)(const ForwardFromSums& arguments);
  /// Writes this rank's gradient sums and the gradients of weight and bias.
  void (*gradient_sums)(const GradientSums& arguments);
  /// Writes the gradient of x, or only reports the header of `sums` if `dx` is undefined.
  void (*apply_grad)(const InputGradient& arguments);
};

}  // namespace tutti::kernels
