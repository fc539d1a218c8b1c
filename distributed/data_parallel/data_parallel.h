// DataParallel: the same model on every rank of a group, each rank with its own share of the batch.
// Makes the models equal at the start and averages the gradients during backward. It knows
// parameters and buffers by name, not modules.
#pragma once

#include "../../core/state_dict.h"
#include "communication_hook.h"

#include <memory>

namespace tutti::distributed {

class Reducer;

struct DataParallelOptions {
  double bucket_cap_mb = 25;   ///< MiB of gradients that travel together
  double first_bucket_mb = 1;  ///< the first bucket is smaller, so that communication starts early
  /// Parameters may get no gradient, or one in several parts (weights shared with recomputed
  /// blocks), different ones on every rank and in every step. Costs one small collective more in
  /// each backward, and buckets with unused parameters start only at its end. Off: an unused
  /// parameter, or one whose gradient comes in parts on some ranks only, is an error that names it.
  bool find_unused_parameters = false;
  /// Lays the buckets out anew, once, in the order in which the gradients of rank 0's first
  /// backward came.
  bool reorder_buckets = true;
  CommunicationHook communication = {};  ///< default: all-reduce in the gradients' own dtype
};

/// While it lives, every backward() averages the gradients over the ranks before it returns:
///
///   DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
///   cross_entropy(net(images), labels).backward();   // collective
///
/// Gradients become views of buckets in the parameters' own layout, valid until the next averaging
/// backward. Buckets are reduced in one fixed order on every rank, each as soon as all of its
/// gradients are there, while backward goes on. What is averaged is the parameter's whole gradient,
/// with what no_sync() scopes have accumulated: the mean over the ranks, whatever their batch
/// sizes. To weight uneven ranks by their samples, scale each loss by size * local batch / global
/// batch. Leaf hooks added to a parameter after this object see an undefined gradient (it is in its
/// bucket).
///
/// One object serves one thread. On a group of one it does nothing at all.
class DataParallel {
 public:
  /// Collective. Checks that names, shapes, dtypes and requires_grad are the same on every rank
  /// (DistributedError that shows the first difference and both ranks), then copies parameters and
  /// buffers from rank 0. Parameters that do not require grad now are never averaged.
  DataParallel(StateDict parameters, StateDict buffers, ProcessGroup group,
               DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Backwards that run while one lives leave the gradients local, where the forward ran does not
  /// matter; the next one outside, or synchronize_gradients(), averages all that has accumulated.
  class NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DataParallel;
    explicit NoSync(std::shared_ptr<Reducer> reducer);
    std::shared_ptr<Reducer> reducer_;
  };
  [[nodiscard]] NoSync no_sync();

  /// Collective: averages the gradients as they are now, an absent one counting as zeros.
  void synchronize_gradients();
  /// Collective: copies the buffers of rank `root` to all ranks. The buffers of synchronised layers
  /// are equal anyway; those of plain batch norm are each rank's own until this is called, say
  /// before a checkpoint.
  void broadcast_buffers(int root = 0);

  const ProcessGroup& group() const { return group_; }
  /// The names of the parameters in each bucket, in the order of the buckets. Empty on a group of
  /// one.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  StateDict buffers_;
  ProcessGroup group_;
  std::shared_ptr<Reducer> reducer_;  // null on a group of one
};

}  // namespace tutti::distributed

namespace tutti {
using distributed::DataParallel;
}
