// DataLoader reads, changes and stacks samples on threads of its own, while the caller computes
// with the batches before. What a batch holds follows from the dataset, the options, the epoch and
// the number of the batch alone: threads change when it is ready, and nothing else.
#pragma once

#include "batch.h"
#include "dataset.h"
#include "sampler.h"
#include "transforms/transform.h"

#include <chrono>
#include <memory>
#include <optional>

namespace tutti::data {

/// Makes batches of a dataset. One thread uses a DataLoader at a time.
class DataLoader {
 public:
  struct Options {
    /// The order, the batches and this rank's part of them. The transforms draw from its seed.
    DistributedSampler::Options sampler = {};
    std::vector<Transform> transforms = {};             ///< of each image, in turn
    std::vector<BatchTransform> batch_transforms = {};  ///< of each batch, behind these
    /// The number of threads that load. With 0 the calling thread loads, in next().
    int workers = 1;
    /// How many batches are ready or under way at most, beside those that the caller holds. This
    /// bounds the memory.
    int prefetch = 2;
    /// A GPU that copies the batches. Images and labels are then in page-locked memory, from which
    /// it copies without making the host wait; such a batch must not change before the GPU has
    /// copied it. For the CPU they are in plain memory.
    Device pin_memory_for = Device::cpu();
  };
  /// The position in a run: the batch that next() returns next. Set in another loader of the same
  /// dataset and options, it gives the same batches from there on.
  struct State {
    std::int64_t epoch = 0;
    std::int64_t batch = 0;  ///< batches_per_epoch() at the end of the epoch
    bool operator==(const State&) const = default;
  };

  /// Starts the threads, at batch 0 of epoch 0. Throws a ValueError for a null dataset, a negative
  /// number of workers, a prefetch below 1, and what DistributedSampler refuses; throws a
  /// DeviceError that says why if memory is to be pinned and there is no CUDA.
  DataLoader(std::shared_ptr<const Dataset> dataset, Options options);
  /// Ends the threads as soon as each has finished its sample. In the child of a fork it leaves
  /// them, which are the parent's.
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// Returns this rank's next batch. At the end of an epoch it returns nothing, once, and the next
  /// call begins the following epoch. Images are stacked as the transforms return them; they must
  /// have one shape and dtype. A rank's part may have no samples: images then have the shape
  /// (0, ...). Throws a DataError that names the sample which could not be read, changed or
  /// stacked: the first one of the batch, whichever thread failed first. Where the machine lacks
  /// memory this is an OutOfMemoryError, and where the system cannot read a file a FileError. The
  /// position stays, so that the next call tries the batch again.
  std::optional<Batch> next();

  std::int64_t batches_per_epoch() const { return sampler_.batches(); }
  State state() const { return state_; }
  /// Moves to another position, at once: batches that were loaded ahead are dropped. Throws a
  /// ValueError for an epoch below 0 or a batch outside 0..batches_per_epoch().
  void set_state(State state);

  /// Returns how long next() has waited for batches so far.
  std::chrono::duration<double> waited() const { return waited_; }

 private:
  struct Job;
  struct Queue;
  std::shared_ptr<Job> make_job(std::int64_t number);
  void fill_queue(int most);
  void run_task(Job& job, std::size_t task);
  void load(Job& job, std::size_t task) const;
  void complete(Job& job) const;
  void apply_batch_transforms(Batch& batch) const;

  std::shared_ptr<const Dataset> dataset_;
  Options options_;
  DistributedSampler sampler_;
  State state_;
  std::vector<std::int64_t> order_;  // of epoch order_epoch_
  std::int64_t order_epoch_ = -1;
  std::chrono::duration<double> waited_{0};
  std::unique_ptr<Queue> queue_;  // stays last: its threads use the other members
};

}  // namespace tutti::data
