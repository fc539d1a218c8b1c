// Batch normalisation as a layer: BatchNorm, its rank-checking forms BatchNorm1d/2d/3d, and
// SyncBatchNorm. They are one implementation: a BatchNorm with a process group is a SyncBatchNorm.
// The computation is forward.cpp; attaching groups to the layers of a model is
// convert.h.
#pragma once

#include "../../distributed/process_group.h"
#include "../module.h"
#include "functional.h"

namespace tutti::nn {

/// y = (x - mean) / sqrt(var + eps) weight + bias over all dimensions of x (N, C, ...) but C (Ioffe
/// and Szegedy, "Batch Normalization", 2015). In training, mean and biased variance are those of
/// the batch, over all ranks of the group where there is one; running_mean and running_var move
/// towards them (running_var towards the unbiased variance). In evaluation the running ones are
/// used, or the local batch's where none are tracked; nothing is communicated then. Output in the
/// memory format of x. float32, float64 and bfloat16; parameters and statistics are kept in float32
/// or float64 whatever the module is moved to.
///
/// With a group, the gradient of x is that of the sum of the ranks' losses, and the gradients of
/// weight and bias are this rank's share: DataParallel averages them with the rest. Where ranks
/// have batches of different sizes, scale each rank's mean loss by world_size * local_batch /
/// global_batch to train as one process on the whole batch would. Ranks with an empty batch take
/// part. Each forward and each backward is one collective of 8 (2C + 8) bytes; the forward of
/// float64 input of 8 (4C + 8).
///
/// Ranks add up sums of squares in float64. That costs the variance a relative error of at most
/// about 4e-16 (1 + mean^2 / var) for a few ranks: 4e-8, a rounding to float32, where the mean is
/// 10,000 deviations. Each rank may add 1e-16 to 4e-16. What rounding the input to float32 costs is
/// more: 6e-8 mean / std. For float64 input, where it would not be, the sums have 79 digits: at
/// most about 1e-14 + 1e-23 mean^2 / var, as long as the ranks' counts differ by less than 2^27 /
/// ranks.
class BatchNorm : public Layer {
 public:
  struct Options {
    std::int64_t channels = 0;
    double eps = 1e-5;
    std::optional<double> momentum =
        0.1;             ///< share of the new batch; none: the plain average of all batches
    bool affine = true;  ///< weight and bias at all
    bool bias = true;
    bool track_running_stats = true;
    bool eps_is_floor = false;  ///< sqrt(max(var, eps)) instead of sqrt(var + eps)
    bool pooled =
        false;  ///< running statistics of all batches as if one, by their counts; ignores momentum
    DType dtype = float32;  ///< of parameters and buffers: float32 or float64
    Device device = {};
    std::optional<ProcessGroup> group = {};  ///< share statistics with these ranks
  };

  /// weight 1, bias 0, running_mean 0, running_var 1, num_batches_tracked 0. ValueError for fewer
  /// than one channel, a negative or non-finite eps, a momentum outside [0, 1]; DTypeError for
  /// another dtype.
  explicit BatchNorm(Options options);

  Tensor forward(const Tensor& x) override;
  /// The same with what often follows fused into it, forward and backward: max(., 0), and +
  /// residual before that. These run the forward hooks, as layer(x) does, with x and the fused
  /// output.
  Tensor forward_relu(const Tensor& x);
  Tensor forward_add_relu(const Tensor& x, const Tensor& residual);
  Tensor forward_add(const Tensor& x, const Tensor& residual);
  /// With weights of samples (N) or positions (N, ...) in the statistics: 0 masks padding out. Runs
  /// the hooks too.
  Tensor forward_weighted(const Tensor& x, const Tensor& position_weights);

  /// Several layers in two phases, with a single collective forward for all, and one backward:
  /// parallel branches that share a group, such as the main and the shortcut path of a block. See
  /// BatchNormTogether.
  ///
  ///   BatchNorm::Together together;
  ///   const auto a = together.start(shortcut_bn, shortcut_conv(x)), b = together.start(bn,
  ///   conv(h)); const Tensor y = together.finish(b, together.finish(a), true);   // relu(bn +
  ///   shortcut)
  class Together {
   public:
    /// The layer's statistics of x (with `position_weights`) on this rank.
    std::size_t start(BatchNorm& layer, const Tensor& x, const Tensor& position_weights = {});
    /// The output, then the layer's hooks. The first call exchanges the statistics of all. A
    /// residual that does not fit is found only after that: the running statistics have moved then,
    /// and the call counts.
    Tensor finish(std::size_t which, const Tensor& residual = {}, bool relu = false);

   private:
    friend class BatchNorm;
    std::size_t add(BatchNorm& layer, const Tensor& x, BatchNormArgs args);

    BatchNormTogether calls_;
    std::vector<std::pair<BatchNorm*, Tensor>> started_;
    bool counted_ = false;
  };

  /// One layer of forward_together.
  struct Branch {
    BatchNorm& layer;
    Tensor x;
    Tensor residual = {};
    bool relu = false;
  };
  /// The same where no output depends on another.
  static std::vector<Tensor> forward_together(const std::vector<Branch>& branches);

  /// Shares statistics with the ranks of `group` from now on; none: with nobody.
  /// Its calls are counted from here on, so ranks that come from different groups agree on their
  /// number.
  void set_process_group(std::optional<ProcessGroup> group);
  /// What convert.h does to a layer: gives it a group where it has none, and takes away what that
  /// gave. False where there was nothing to do.
  bool convert(const ProcessGroup& group);
  bool revert();
  const std::optional<ProcessGroup>& process_group() const { return options_.group; }
  const Options& options() const { return options_; }
  std::string describe() const override;

  /// On CUDA: waits for the calls so far and throws what the device has found about them (see
  /// forward.cpp), which they did not wait for: say, before weights are saved.
  /// Elsewhere they have thrown it themselves.
  void check_statistics() const;

 private:
  Options options_;  // before the tensors, which are made from it
  std::shared_ptr<LateHeaders> late_;

 public:
  Tensor& weight;                ///< (C); undefined where not affine
  Tensor& bias;                  ///< (C); undefined where there is none
  Tensor& running_mean;          ///< (C); undefined, like the following, where not tracked
  Tensor& running_var;           ///< (C), unbiased
  Tensor& num_batches_tracked;   ///< int64, ()
  Tensor& num_elements_tracked;  ///< float64, (): elements per channel, or the sum of their
                                 ///< weights; with `pooled` only

 protected:
  DType own_dtype(const Tensor& own, DType requested) const override;
  /// The input that the layer is for.
  virtual InputRank input_rank() const { return {}; }

 private:
  BatchNormArgs arguments() const;
  Tensor run(const Tensor& x, const Tensor& residual, bool relu, const Tensor& weights = {});
  Tensor run_with_hooks(const Tensor& x, const Tensor& residual, bool relu,
                        const Tensor& weights = {});
  void count_call();

  std::int64_t synchronised_calls_ = 0;
  bool converted_ = false;
};

/// (N, C) or (N, C, L).
class BatchNorm1d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  InputRank input_rank() const override { return {2, 3, "(N, C) or (N, C, L)"}; }
};

/// (N, C, H, W).
class BatchNorm2d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  InputRank input_rank() const override { return {4, 4, "(N, C, H, W)"}; }
};

/// (N, C, D, H, W).
class BatchNorm3d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;

 protected:
  InputRank input_rank() const override { return {5, 5, "(N, C, D, H, W)"}; }
};

}  // namespace tutti::nn
