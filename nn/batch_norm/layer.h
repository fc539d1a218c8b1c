// BatchNorm is batch normalisation as a layer; BatchNorm1d, 2d and 3d also check the number of
// dimensions. A BatchNorm with a process group is a SyncBatchNorm: both are this one class. The
// computation is in forward.cpp and backward.cpp; convert.h gives groups to the layers of a model.
#pragma once

#include "../../distributed/process_group.h"
#include "../module.h"
#include "functional.h"

#include <memory>
#include <optional>

namespace tutti::nn {

struct CallHistory;

/// A layer that computes y = (x - mean) / sqrt(var + eps) weight + bias over all dimensions of x
/// (N, C, ...) but C (Ioffe and Szegedy, "Batch Normalization", 2015). In training, mean and biased
/// variance are those of the batch, over all ranks of the group if there is one; running_mean and
/// running_var move towards them (running_var towards the unbiased variance). Evaluation uses the
/// running statistics, or those of the local batch if none are tracked, and communicates nothing.
/// The output has the memory format of x. Inputs are float32, float64, bfloat16 or, on CUDA only,
/// float16; parameters and statistics stay in float32 or float64 when the module is moved to
/// another dtype.
///
/// With a group, the gradient of x is that of the sum of the ranks' losses, and the gradients of
/// weight and bias are this rank's share: DataParallel averages them with the rest. If the ranks
/// have batches of different sizes, scale each rank's mean loss by world_size * local_batch /
/// global_batch to train as one process on the whole batch would. A rank with an empty batch takes
/// part. In training, each forward and each backward runs one collective of 8 (2C + 8) bytes; the
/// forward of float64 input sends 8 (4C + 8) bytes.
///
/// Ranks add up sums of squares in float64. For a few ranks that costs the variance a relative
/// error of at most about 4e-16 (1 + mean^2 / var): 4e-8, the rounding error of float32, for a
/// mean of 10,000 standard deviations. Each further rank may add 1e-16 to 4e-16. Rounding the input
/// to float32 costs more: 6e-8 mean / std. Float64 input is not rounded first, so ranks send its
/// sums with 79 bits. The relative error of the variance is then at most about
/// 1e-14 + 1e-23 mean^2 / var, as long as the ranks' counts differ by a factor of less than 2^27 /
/// ranks.
class BatchNorm : public Layer {
 public:
  struct Options {
    std::int64_t channels = 0;
    double eps = 1e-5;
    /// The weight of a new batch in the running statistics, in [0, 1]. Without a value they are the
    /// plain average of all batches.
    std::optional<double> momentum = 0.1;
    bool affine = true;  ///< has a weight, and a bias if `bias`
    bool bias = true;
    bool track_running_stats = true;
    bool eps_is_floor = false;  ///< divides by sqrt(max(var, eps)) instead of sqrt(var + eps)
    /// Whether the running statistics are computed as if all batches were one batch. The momentum
    /// is then ignored.
    bool pooled = false;
    /// Whether backward computes the output again from the input, residual and statistics, instead
    /// of keeping it from forward to backward for the layers that save it, such as a convolution.
    /// It has no effect on any number. See set_recompute_output() in convert.h.
    bool recompute_output = false;
    DType dtype = float32;  ///< the dtype of parameters and buffers, float32 or float64
    Device device = {};
    std::optional<ProcessGroup> group = {};  ///< the ranks that share their statistics
  };

  using ForwardOptions = BatchNormForwardOptions;

  /// The weight starts at 1, the bias at 0, running_mean at 0, running_var at 1. Throws ValueError
  /// for fewer than one channel, a negative or non-finite eps, or a momentum outside [0, 1];
  /// DTypeError for a dtype of parameters and buffers other than float32 and float64.
  explicit BatchNorm(Options options);

  Tensor forward(const Tensor& x) override;
  /// Computes the forward with `options`, then runs the forward hooks with x and the fused output,
  /// as layer(x) does.
  Tensor forward(const Tensor& x, const ForwardOptions& options);

  /// Shares statistics with the ranks of `group` from now on, or with nobody if there is none.
  /// ValueError for a group if the layer normalises by groups of channels. The layer's count of
  /// synchronised calls restarts at 0, so that it is equal on ranks that come from different
  /// groups. The layer takes the next number of the group, which its collectives carry, as it does
  /// at construction: ranks must give their layers a group in the same order.
  void set_process_group(std::optional<ProcessGroup> group);
  /// Gives the layer a group, by default distributed::world(), if it has none and does not
  /// normalise by groups of channels; returns whether it did. See convert.h.
  bool convert(const std::optional<ProcessGroup>& group);
  const std::optional<ProcessGroup>& process_group() const { return options_.group; }

  /// Makes the layer normalise each sample over groups of channels, as GroupNorm does, for
  /// convert_batchnorm_to_groupnorm(). Weight and bias stay; the running statistics become
  /// undefined and leave the state dict. Training and evaluation are the same from then on.
  /// ValueError if `groups` does not divide the channels, or the layer has a group of ranks or an
  /// eps that is a floor.
  void normalize_by_groups(std::int64_t groups);
  /// Throws the errors of normalize_by_groups() and changes nothing.
  void check_channel_groups(std::int64_t groups) const;
  /// Returns the number of groups of channels; 0 in a layer that normalises by batches.
  std::int64_t channel_groups() const { return channel_groups_; }

  /// Freezes the layer, or undoes that. A frozen layer normalises by its running statistics also in
  /// training, does not change them, communicates nothing, and its weight and bias require no
  /// gradient. A layer that tracks no running statistics goes on normalising by those of its rank's
  /// batch, as in evaluation. See nn::freeze() for a whole model.
  void freeze(bool on = true);
  bool is_frozen() const { return is_frozen_; }

  /// Sets Options::recompute_output for the calls that follow.
  void set_recompute_output(bool on = true) { options_.recompute_output = on; }

  /// Makes the layer the identity for input of `rank` dimensions, after fold_batch_norm() has
  /// folded it into the layer before it; a residual and a ReLU are still applied. Its parameters
  /// and buffers become undefined and leave the state dict. From then on forward() throws an Error
  /// in training, unless the layer is frozen, and a ShapeError for input of another rank.
  void become_identity(int rank);
  bool is_folded() const { return folded_rank_ > 0; }

  const Options& options() const { return options_; }
  std::string describe() const override;
  /// Returns "SyncBatchNorm 'layer1.bn1'" for a layer with a group, also for one of a derived
  /// class, because the ranks of a group compare this name; else "BatchNorm 'layer1.bn1'".
  std::string error_name() const override;

  /// Waits until the CUDA device has checked all calls so far, and throws the oldest deferred error
  /// that has not been thrown yet (see batch_norm). Call it, for example, before weights are saved.
  /// On the CPU it does nothing, because every call throws its errors itself.
  void check_statistics() const;

 private:
  Options options_;  // declared before the tensors, whose initialisers read it
  std::shared_ptr<CallHistory> history_;

 public:
  const Tensor& weight;               ///< (C); undefined if not affine
  const Tensor& bias;                 ///< (C); undefined if there is none
  const Tensor& running_mean;         ///< (C); undefined, like the following, if not tracked
  const Tensor& running_var;          ///< (C), unbiased
  const Tensor& num_batches_tracked;  ///< int64, ()
  /// float64, (): the number of values per channel so far, or the sum of their weights. Undefined
  /// unless `pooled`.
  const Tensor& num_elements_tracked;

 protected:
  DType own_dtype(const Tensor& own, DType requested) const override;
  /// The number of dimensions that the layer accepts.
  virtual InputDims input_dims() const { return {}; }
  /// Shares statistics with distributed::world(). While that is a group of one rank, each forward
  /// in training looks again: a model may be made before the world.
  void share_with_world();

 private:
  friend class StatisticsRun;
  void share_with(std::optional<ProcessGroup> group);
  void look_for_world();
  BatchNormArgs arguments(const ForwardOptions& options) const;
  void set_folded_arguments(BatchNormArgs& args) const;
  Tensor compute(const Tensor& x, const ForwardOptions& options);
  Tensor normalize_groups(const Tensor& x, const ForwardOptions& options) const;

  bool is_of_world_ = false;  ///< the group is world(), because no other one was given
  bool is_frozen_ = false;
  std::int64_t channel_groups_ = 0;
  int folded_rank_ = 0;  ///< the rank of the input of a folded layer; 0 for any other layer
  /// Where recompute_statistics() pools the batches that it runs; undefined at other times.
  kernels::RunningStatistics pooled_statistics_;
};

/// Takes (N, C) or (N, C, L).
class BatchNorm1d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  InputDims input_dims() const override { return {2, 3, "(N, C) or (N, C, L)"}; }
};

/// Takes (N, C, H, W).
class BatchNorm2d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  InputDims input_dims() const override { return {4, 4, "(N, C, H, W)"}; }
};

/// Takes (N, C, D, H, W).
class BatchNorm3d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  InputDims input_dims() const override { return {5, 5, "(N, C, D, H, W)"}; }
};

}  // namespace tutti::nn
