// DataParallel: trains the same model on every rank of a group, each rank with its own share of the
// batch. It makes the models equal at the start and averages the gradients during backward. It
// knows parameters and buffers by name, and no modules.
#pragma once

#include "../../core/state_dict.h"
#include "communication_hook.h"

#include <memory>

namespace tutti::distributed {

class Reducer;

/// The choices of DataParallel.
struct DataParallelOptions {
  double bucket_cap_mb = 25;   ///< How many MiB of gradients travel together at most.
  double first_bucket_mb = 1;  ///< Less for the first bucket, so that communication starts early.
  /// Allows parameters that get no gradient, different ones on every rank and in every step. This
  /// costs one small collective more in each backward. Buckets do not wait for parameters that the
  /// loss does not reach, except where the backward calls other collectives of the group, or
  /// reaches leaves with other hooks: there they wait for the end of backward. Where devices wait
  /// for collectives (NCCL), collectives of other groups count too, such as those of SyncBatchNorm,
  /// and then all buckets wait. Without it, an unused parameter is an error that names it.
  bool find_unused_parameters = false;
  /// Lays out the buckets anew, once, in the order in which rank 0's first backward produced the
  /// gradients.
  bool reorder_buckets = true;
  /// How a bucket is summed over the ranks; by default an all-reduce in the gradients' dtype.
  CommunicationHook communication = {};
  /// Tells models of one architecture apart, such as the two discriminators of a CycleGAN. Ranks
  /// that wrap modules in another order than they made them are found without it; for models whose
  /// parameters belong to no module, the name alone tells.
  std::string name = {};
};

/// While the object lives, every backward() averages the gradients over the ranks before it
/// returns:
///
///   DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
///   cross_entropy(net(images), labels).backward();   // collective
///
/// Gradients become views of buckets, with the shape and strides that their parameters had when
/// this object was made, valid until the next averaging backward. The buckets are reduced in one
/// fixed order on every rank, each as soon as all of its gradients are there, while backward
/// continues.
///
/// What would be averaged with something else, or not at all, is an Error on every rank: a
/// parameter that is unfrozen or that a module gets after this object was made, such as a new head,
/// one that was moved to another dtype or device, and, in the first averaging backward only, values
/// that differ between the ranks because weights were loaded on one of them.
///
/// Every rank makes the same forwards, backwards and optimizer steps, with its objects in the same
/// order. A bucket carries the number of the object (counted in its group by construction), of the
/// backward and of the optimizer steps of its parameters, and the uses of parameters in forwards
/// without a backward. Where these differ, gradients of different steps or models are not averaged:
/// every rank gets a DistributedError that shows both sides. So what one rank does alone belongs
/// under NoGrad (forwards) or into a no_sync() scope (backwards). Only a rank that leaves out all
/// of forward, backward and optimizer step is not found before it has one step less at the end.
///
/// The average covers the whole gradient of a parameter, with what no_sync() scopes have
/// accumulated. It is the mean over the ranks, whatever their batch sizes; to weight uneven ranks
/// by their samples, multiply each mean loss by size * local batch / global batch (Join gives such
/// factors). Leaf hooks that are added to a parameter after this object see an undefined gradient,
/// because it lies in its bucket by then.
///
/// One object serves one thread. On a group of one rank it does nothing.
class DataParallel {
 public:
  /// Checks that options, names, shapes, dtypes, memory formats and requires_grad are the same on
  /// every rank, then copies parameters and buffers from rank 0. This call is collective: an
  /// all-gather of 16 bytes a rank, and a broadcast for each dtype and each 256 MiB, whatever the
  /// number of tensors. Throws a DistributedError that shows the first difference on both ranks,
  /// and a ValueError for a tensor that is undefined, computed or expanded, that has two names, or
  /// that another DataParallel averages. Parameters that do not require a gradient now are never
  /// averaged.
  [[nodiscard]] DataParallel(StateDict parameters, StateDict buffers, ProcessGroup group,
                             DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// A scope in which backward leaves the gradients local. It does not matter where the forward
  /// ran. The next backward outside of the scope, or synchronize_gradients(), averages all that has
  /// accumulated.
  class NoSync {
   public:
    ~NoSync();
    NoSync(NoSync&&) = default;
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend class DataParallel;
    explicit NoSync(std::shared_ptr<Reducer> reducer);
    std::shared_ptr<Reducer> reducer_;
  };
  [[nodiscard]] NoSync no_sync();

  /// Averages the gradients as they are now; an absent one counts as zeros. This call is
  /// collective.
  void synchronize_gradients();
  /// Copies the buffers of rank `root` to all ranks. This call is collective. The buffers of
  /// SyncBatchNorm are equal anyway; those of plain batch norm are each rank's own until this is
  /// called, for example before a checkpoint.
  void broadcast_buffers(int root = 0);

  const ProcessGroup& group() const { return group_; }
  /// Returns the names of the parameters in each bucket, in the order of the buckets; empty on a
  /// group of one rank.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  StateDict buffers_;
  ProcessGroup group_;
  std::string identity_;              // what the ranks compare with every call of this object
  std::shared_ptr<Reducer> reducer_;  // null on a group of one
};

}  // namespace tutti::distributed

namespace tutti {
using distributed::DataParallel;
}
