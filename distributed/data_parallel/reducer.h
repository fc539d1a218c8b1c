// Reducer: averages gradients during backward. A leaf hook on every parameter copies its gradient,
// divided by the number of ranks, into a bucket; buckets start in their fixed order, whatever order
// gradients come in, so that every rank issues the same collectives; a callback at the end of
// backward waits for them. DataParallel owns it.
//
// While a backward runs, the gradient of a parameter that has arrived is taken away (it is in its
// bucket): should more of it come in the same backward (weights shared with a recomputed block),
// that lands beside the bucket, which may be under way on some rank, and is averaged at the end.
#pragma once

#include "buckets.h"
#include "data_parallel.h"

namespace tutti::distributed {

class Reducer {
 public:
  Reducer(StateDict parameters, ProcessGroup group, DataParallelOptions options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void detach();  ///< removes the hooks
  void pause(bool on) { paused_ += on ? 1 : -1; }
  void synchronize();  ///< see DataParallel::synchronize_gradients
  std::vector<std::vector<std::string>> bucket_names() const;

 private:
  struct State {  // of one parameter in the present backward
    std::size_t bucket = 0, place = 0;
    bool arrived = false;
    bool empty = false;  // as far as this rank knows: no backward has given it a gradient
    Tensor late;         // what came after the first gradient
  };

  void lay_out(const std::vector<std::size_t>& order);
  void on_gradient(std::size_t parameter, Tensor& gradient);
  void take(std::size_t parameter, const Tensor& gradient);
  void launch_ready();
  void finish();
  void refuse_unused();
  void contribute_unused();
  void hand_out(bool uneven);
  void reorder(std::vector<std::size_t> arrivals);
  void clear();
  const Tensor& view(std::size_t parameter) const;

  StateDict parameters_;
  std::vector<State> states_;
  std::vector<std::uint64_t> hooks_;
  ProcessGroup group_;
  DataParallelOptions options_;
  std::vector<std::size_t> order_;  // of the parameters in the buckets
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> pending_;   // by bucket: parameters that have not arrived
  std::vector<Work> works_;            // of the buckets that have started
  std::vector<std::size_t> arrivals_;  // parameters in the order they came
  std::uint64_t backward_ = 0;         // the one in progress
  int paused_ = 0;
  bool reordered_ = false;
};

}  // namespace tutti::distributed
