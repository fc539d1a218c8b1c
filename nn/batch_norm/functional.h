// Batch normalisation as a function: the whole data path of nn::BatchNorm and nn::SyncBatchNorm,
// which differ in nothing but `sync`. What the layers add is ownership of the tensors and the
// decision what to compute.
#pragma once

#include "../../distributed/process_group.h"
#include "../../kernels/batch_norm.h"

#include <memory>
#include <optional>
#include <string>

namespace tutti::nn {

class LateHeaders;  // batch_norm_agreement.h

/// With whom the statistics of a batch are shared.
struct StatisticsSync {
  ProcessGroup group;
  std::int64_t call =
      0;  ///< the how-manieth synchronised forward of this layer: must be the same on every rank
};

/// The ranks of input that are welcome, and what to call their shapes.
struct InputRank {
  int from = 2, to = Dims::max_rank;
  const char* shape = "(N, C, ...)";
};

struct BatchNormArgs {
  std::string name = "batch_norm";  ///< who asks, for errors: "SyncBatchNorm 'layer1.0.bn1'"
  InputRank input = {};
  std::int64_t channels = 0;  ///< what x must have; 0: as many as the tensors below, if any
  Tensor weight, bias;        ///< float32 or float64, (C); undefined: 1 and 0
  kernels::RunningStatistics running;  ///< undefined tensors: none are kept
  bool use_batch_statistics = true;    ///< else the running ones
  bool update_running = true;          ///< with batch statistics only
  kernels::Tracking tracking = kernels::Tracking::momentum;
  double momentum = 0.1;
  kernels::Epsilon eps;
  Tensor residual;  ///< added before the ReLU; undefined: none
  bool relu = false;
  Tensor position_weights;             ///< (N) or (N, ...) without C, at least 0; undefined: all 1
  std::optional<StatisticsSync> sync;  ///< ignored with running statistics
  std::shared_ptr<LateHeaders>
      late;  ///< on CUDA: of earlier calls, looked at here; null: in the backward only
};

/// y = (x - mean) / sqrt(var + eps) weight + bias (+ residual, then ReLU) for x of shape (N, C,
/// ...), in the memory format of x. Statistics are taken over all but the channels, and over all
/// ranks of `sync`: one all-reduce of 8 (2C + 8) bytes forward and one backward. With position
/// weights w: mean = sum(w x) / sum(w), likewise var. Whatever x is where w is 0, NaN included,
/// counts for nothing; the output there is what the formula makes of it, so its gradient must be 0
/// where that is NaN. For float64 x the forward takes 8 (4C + 8) bytes, in which no digits of
/// float64 are lost (kernels/batch_norm.h); so x has one dtype on all ranks.
///
/// The gradient of x is that of the *sum* of the ranks' losses; weight and bias gradients are this
/// rank's share. An empty x is legal (its rank takes part); where N is 0 on all ranks together
/// nothing changes. ShapeError, DTypeError, DeviceError where x, weight, bias, running statistics,
/// residual and position weights do not fit together; ValueError for an eps that is negative or not
/// finite, a momentum outside [0, 1] and (on the CPU, where looking is free) a position weight that
/// is negative or not finite. Nothing has changed then, and the other ranks, which would wait, get
/// a DistributedError that says so. ShapeError on every rank where there is one element per channel
/// in all (before any running statistic has changed). DistributedError where ranks are at different
/// layers, calls or phases, or disagree on whether there will be a backward.
///
/// On CUDA the host waits for nothing. What only the numbers tell (ranks that are not at the same
/// place, one element per channel over all ranks or in weights) is found on the device, which moves
/// no running statistics then, and thrown late: by this call's backward, a later call of the layer,
/// or BatchNorm::check_statistics(), whichever first finds that the numbers have arrived; the group
/// is aborted, so that no rank waits. Since no rank knows in time what the others need, each that
/// runs a backward of the layer takes part in its collective: all ranks must run it or none, even
/// where only weights need gradients.
Tensor batch_norm(const Tensor& x, const BatchNormArgs& args);

/// The same in two phases, for several at once whose statistics travel in a single collective,
/// forward and backward: parallel branches, such as the main and the shortcut path of a block.
///
///   BatchNormTogether together;
///   const auto shortcut = together.start(x1, args1), main = together.start(x2, args2);   // this
///   rank's statistics const Tensor y1 = together.finish(shortcut); // all ranks', of all started
///   const Tensor y2 = together.finish(main, y1, true);                                   // max(.
///   + y1, 0)
///
/// Those without `sync`, or with running statistics, may be among them; all others share one group
/// (else ValueError). Their backward is one collective for all that one backward() goes through, so
/// ranks must go through the same. A rank whose only tensor that needs a gradient is a residual
/// given to finish() counts as one without a backward.
class BatchNormTogether {
 public:
  BatchNormTogether();
  ~BatchNormTogether();
  BatchNormTogether(BatchNormTogether&&) noexcept;

  /// Checks, and computes the statistics of x. Throws as batch_norm does; Error after the first
  /// finish().
  std::size_t start(const Tensor& x, BatchNormArgs args);
  /// The output of what start() returned this number for. The first call exchanges the statistics
  /// and updates the running ones, of all. `residual` and `relu` as in the arguments, in addition
  /// to those; but a residual that does not fit is found only after the exchange, on this rank
  /// alone. Error where it is called twice, where x was changed in place since start(), or after an
  /// exchange that failed.
  Tensor finish(std::size_t which, const Tensor& residual = {}, bool relu = false);
  /// What the first finish() does. Collective.
  void exchange();

 private:
  friend Tensor batch_norm(const Tensor& x, const BatchNormArgs& args);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::nn
