// Reducer: averages gradients during backward; DataParallel owns it. A leaf hook on every parameter
// keeps its gradient until those of its bucket are complete; one kernel then copies all of them,
// divided by the number of ranks, into the bucket. Buckets start in their fixed order, in whatever
// order gradients arrive, so that every rank issues the same collectives. A callback at the end of
// backward waits for them and gives every parameter its average.
//
// While a backward runs, a parameter whose gradient is in its bucket has no gradient of its own.
#pragma once

#include "../../autograd/node.h"
#include "buckets.h"
#include "data_parallel.h"

#include <set>

namespace tutti::distributed {

class Reducer {
 public:
  /// `identity` tells this object from others of the group, as CallOptions::step.
  Reducer(StateDict parameters, ProcessGroup group, DataParallelOptions options,
          std::string identity);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Removes the hooks from the parameters.
  void detach() { hooks_.clear(); }
  /// Enters (true) or leaves (false) a no_sync() scope; scopes may nest.
  void pause(bool on);
  /// Does what DataParallel::synchronize_gradients() says.
  void synchronize();
  std::vector<std::vector<std::string>> bucket_names() const;

 private:
  /// A parameter in the present backward.
  struct ParameterState {
    std::size_t bucket = 0;         ///< The bucket in which its gradient lies,
    std::size_t index = 0;          ///< and the index there.
    bool arrived = false;           ///< Its gradient has arrived.
    Tensor gradient = {};           ///< Its gradient, until it is copied into the bucket.
    bool unused = false;            ///< This rank has no gradient for it, and contributes zeros.
    std::int64_t steps_before = 0;  ///< The optimizer steps before this object.
  };

  void lay_out_buckets(const std::vector<std::size_t>& order);
  const Tensor& view(std::size_t parameter) const;

  // In the order of a backward.
  void on_gradient(std::size_t parameter, Tensor& gradient);
  void begin_averaging();
  void look_ahead();
  CallOptions call(std::string name) const {
    return {.name = std::move(name), .step = step_, .of_model = true};
  }
  void check_parameters() const;
  void keep_for_bucket(std::size_t parameter, const Tensor& gradient);
  void count_arrival(std::size_t parameter);
  void fill_bucket(const Bucket& bucket);
  void start_full_buckets();
  void finish_backward();
  void check_new_parameters() const;
  [[noreturn]] void fail_together(const std::string& reason, const std::string& advice) const;
  [[noreturn]] void fail_for_missing_gradients() const;
  void fill_missing_gradients(const std::set<const void*>& except = {});
  void average_gradients(bool ranks_may_differ);
  void share_used_parameters();
  void follow_order_of_rank_0(std::vector<std::size_t> arrivals);
  void compare_replicas_once();
  void reset();

  StateDict parameters_, frozen_;
  std::vector<ParameterState> states_;
  std::vector<std::shared_ptr<void>> hooks_;  // each removes one from its leaf when it ends
  ProcessGroup group_;
  DataParallelOptions options_;
  std::vector<std::size_t> order_;  // of the parameters in the buckets
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> pending_;   // for each bucket, the parameters that have not arrived
  std::vector<Work> works_;            // the collectives of the buckets that have started
  std::vector<std::size_t> arrivals_;  // the parameters in the order in which they arrived
  std::uint64_t backward_ = 0;         // the backward in progress; 0 for none
  int paused_ = 0;                     // the number of no_sync() scopes
  bool starts_at_end_ = false;         // buckets wait for the end of the backward in progress
  // The backwards of this thread that do not count: those before this object and in no_sync()
  // scopes; and how many there were when the scope in progress began.
  std::uint64_t uncounted_ = 0, paused_since_ = 0;
  std::string identity_;
  std::string step_;  // the backward in progress, as the ranks compare it with every bucket
  std::uint64_t last_parameter_number_ = 0;  // of the modules' parameters before this object
  bool reordered_ = false;                   // the buckets have their final order
  bool replicas_compared_ = false;
};

}  // namespace tutti::distributed
