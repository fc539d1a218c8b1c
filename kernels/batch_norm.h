// What a device must be able to do for batch normalisation: the local halves of its forward and
// backward. The collectives between them are the layer's business (nn/batch_norm/forward.cpp),
// so every value that crosses from one half to the other stays in device memory, in a packet, and
// nothing is read back by the host.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// What crosses between kernels and ranks: a float64 tensor of `packet_header + 2 C` numbers,
/// densely stored.
///   [0]       count: elements per channel (or the sum of their weights)
///   [1]       of exact sums only
///   [2..7]    of sums: a Message from moment_sums and gradient_sums, read by settle; else
///   undefined [8..]     two numbers for every channel, C of the first kind and then C of the
///   second
/// Moments hold (mean, M2), M2 being the sum of squared deviations from the mean; sums, which may
/// be added over ranks, hold (n mean, M2 + n mean^2); gradient sums hold (sum dy, sum dy (x -
/// mean)).
///
/// Sums of `exact_packet_size` hold more digits, because M2 is what is left of M2 + n mean^2 after
/// a cancellation: the count and both sums are split into a high part of 26 bits (the double with
/// its lower 27 bits cleared) and the rest, of which everything below is kept (n mean and n mean^2
/// without rounding, as products of two doubles are). The high parts of the ranks add up exactly,
/// as long as their ratio times the ranks stays below 2^27.
///   [0] [1]   count, high and low
///   [8..]     C numbers of each: n mean high, M2 + n mean^2 high, n mean low, M2 + n mean^2 low
inline constexpr std::int64_t packet_header = 8;
inline std::int64_t packet_size(std::int64_t channels) { return packet_header + 2 * channels; }
inline std::int64_t exact_packet_size(std::int64_t channels) {
  return packet_header + 4 * channels;
}

/// Numbers [2..5] of sums: what ranks tell each other beside them, in the same collective.
struct Message {
  double input_grad = 0, backward = 0;  ///< what this rank will need, 0 or 1
  double fingerprint = 0,
         fingerprint_squared = 0;  ///< h and h^2, h standing for where this rank is

  /// Of a message that has been summed: whether h was the same on every rank, as ranks * sum(h^2) =
  /// sum(h)^2 says.
  static bool agrees(double fingerprint, double squared, double ranks) {
    return fingerprint / ranks * (fingerprint / ranks) * ranks == squared;
  }
};
inline constexpr std::size_t message_at = 2;

/// rstd = 1 / sqrt(var + value), or 1 / sqrt(max(var, value)) where `floor`. A NaN variance makes a
/// NaN rstd either way.
struct Epsilon {
  double value = 1e-5;
  bool floor = false;
};

/// How running statistics move to those of a batch.
enum class Tracking {
  momentum,    ///< by a fixed fraction
  cumulative,  ///< by 1 / number of batches: their plain average, as PyTorch's momentum=None
  pooled       ///< by counts: as if all batches had been one
};

struct RunningStatistics {
  Tensor mean, var;  ///< float32 or float64, [C]; var is unbiased
  Tensor batches;    ///< int64, ()
  Tensor elements;   ///< float64, (): elements per channel so far, or the sum of their weights; for
                     ///< Tracking::pooled only
};

/// What maps x to the output: z = (x - mean) rstd weight + bias, plus `residual`, then max(z, 0)
/// where `relu`.
///
/// After a residual, x no longer says which elements the ReLU let pass, and the backward kernels
/// have to be told: by `mask`, uint8 of BatchNorm::mask_size(x) bytes in an order of the device's
/// own, which apply and forward write where it is defined, a bit for each element that is 1 where
/// the output is above 0; or, on a device whose mask_size is 0, by NormalizationGrad::output.
struct Normalization {
  Tensor mean, rstd;    ///< float64, [C]
  Tensor weight, bias;  ///< float32 or float64, [C]; undefined: 1 and 0
  Tensor residual;      ///< undefined: none
  bool relu = false;
  Tensor mask = {};  ///< undefined: not stored, and no backward will ask for it
};

/// What the backward kernels read beside the gradient. Where the ReLU let it pass is computed again
/// from x, but after a residual it is read: see Normalization.
struct NormalizationGrad {
  Normalization forward;  ///< `residual` is looked at for being defined only
  Tensor x, output;  ///< the output where relu followed a residual and mask_size(x) is 0; else it
                     ///< may be undefined
  bool weighted = false;  ///< positions have weights: x may be anything where one is 0, and so
                          ///< counts for nothing wherever the gradient is 0
};

/// What the statistics of a batch lead to, beside mean and rstd.
struct Settlement {
  Epsilon eps;
  Tracking tracking = Tracking::momentum;
  double momentum = 0.1;
  RunningStatistics running = {};  ///< undefined tensors: none move
  double ranks = 0;  ///< whose sums these are: where their messages do not agree, nothing moves. 0:
                     ///< do not look
};

/// Activations x, y, dy, residual and their gradients are (N, C, ...), dense in one and the same
/// memory format, of one dtype. `weights` are those of the positions, float32 or float64, dense, of
/// shape (N, ...) without C; undefined: all 1. What x is where the weight is 0, NaN included, has
/// no influence on moments. Empty tensors are legal. The results do not depend on the thread count.
struct BatchNorm {
  /// Count, mean and M2 of this rank's x into the packet.
  void (*moments)(const Tensor& x, const Tensor& weights, const Tensor& packet);
  /// Moments to sums and back: the count and what there is for every channel. `sums` has
  /// packet_size, and may then be `moments` itself, or exact_packet_size. A count of 0 makes zeros.
  void (*to_sums)(const Tensor& moments, const Tensor& sums);
  void (*from_sums)(const Tensor& sums, const Tensor& moments);
  /// mean and rstd (float64, [C]) from moments.
  void (*finish)(const Tensor& packet, Epsilon eps, const Tensor& mean, const Tensor& rstd);
  /// The same from running statistics.
  void (*finish_running)(const RunningStatistics& running, Epsilon eps, const Tensor& mean,
                         const Tensor& rstd);
  /// Moves the running statistics to those of the moments; a count of at most 1 changes nothing,
  /// batches included.
  void (*update)(const Tensor& packet, Tracking tracking, double momentum,
                 const RunningStatistics& running);
  /// Bytes of the mask for an output like x; 0 where this device reads the output instead.
  std::int64_t (*mask_size)(const Tensor& x);
  /// Writes y, and the mask.
  void (*apply)(const Tensor& x, const Normalization& to, const Tensor& y);
  /// Gradient sums of this rank into `sums`; where `masked` is defined also dy as it is below the
  /// ReLU (the gradient of the residual). `masked` may be dy itself.
  void (*reduce_grad)(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                      const Tensor& masked);
  /// The gradients of weight and bias from this rank's gradient sums; either may be undefined.
  void (*parameter_grad)(const Tensor& sums, const Tensor& rstd, const Tensor& weight_grad,
                         const Tensor& bias_grad);
  /// dx from the gradient sums of all ranks and their moments; with undefined `sums` mean and rstd
  /// are constants (running statistics). dx may be dy itself. Where the weight is 0 dx does not
  /// depend on x but through the ReLU.
  void (*apply_grad)(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                     const Tensor& moments, const Tensor& weights, Epsilon eps, const Tensor& dx);

  // ---- several of the above in one call, in as few launches and passes as the device can. Same
  // results.

  /// moments and to_sums, and the message of the sums.
  void (*moment_sums)(const Tensor& x, const Tensor& weights, const Tensor& sums,
                      const Message& message);
  /// from_sums, finish and update. `sums` may be `moments` itself; undefined, the moments are there
  /// already.
  void (*settle)(const Tensor& sums, const Tensor& moments, const Settlement& how,
                 const Tensor& mean, const Tensor& rstd);
  /// The forward of one rank: moments, finish, update and apply. Writes mean, rstd and mask of
  /// `to`, too.
  void (*forward)(const Tensor& x, const Tensor& weights, const Tensor& moments,
                  const Settlement& how, const Normalization& to, const Tensor& y);
  /// reduce_grad and parameter_grad, and the message of the sums.
  void (*gradient_sums)(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                        const Tensor& masked, const Tensor& weight_grad, const Tensor& bias_grad,
                        const Message& message);
  /// The backward of one rank: reduce_grad, parameter_grad and apply_grad. dx may be dy where
  /// `masked` is not.
  void (*backward)(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                   const Tensor& masked, const Tensor& weight_grad, const Tensor& bias_grad,
                   const Tensor& moments, const Tensor& weights, Epsilon eps, const Tensor& dx);
};

namespace cpu {
const BatchNorm& batch_norm();
}
namespace cuda {
const BatchNorm& batch_norm();
}
inline const BatchNorm& batch_norm(Device device) {
  return device.is_cpu() ? cpu::batch_norm() : cuda::batch_norm();
}

}  // namespace tutti::kernels
