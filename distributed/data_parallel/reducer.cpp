#include "reducer.h"

#include "../../autograd/engine.h"
#include "../../autograd/grad_mode.h"
#include "../../core/create.h"
#include "../../kernels/elementwise.h"

#include <algorithm>
#include <numeric>

namespace tutti::distributed {
namespace {

bool same_view(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.strides() == b.strides();
}

// Runs a communication hook, or the wait for what it started. Where that throws, the other ranks
// are told: they may be waiting for this one. No effect where the group is broken already.
template <class Run>
void guarded(const ProcessGroup& group, const Bucket& bucket, const Run& run) {
  const auto tell = [&](const char* what) {
    group.abort(fmt::format("the communication hook failed at {}: {}", bucket.label, what));
  };
  try {
    run();
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  } catch (...) {
    tell("an exception that is no std::exception");
    throw;
  }
}

// A rank that has nothing late is at another call, unless it was asked to expect that.
CallOptions late_call(const std::string& parameter) {
  return {.name = "late gradient of " + parameter +
                  "; if not on every rank, set find_unused_parameters"};
}

}  // namespace

Reducer::Reducer(StateDict parameters, ProcessGroup group, DataParallelOptions options)
    : parameters_(std::move(parameters)),
      states_(parameters_.size()),
      group_(std::move(group)),
      options_(std::move(options)),
      reordered_(!options_.reorder_buckets || options_.find_unused_parameters) {
  if (!options_.communication)
    options_.communication = [](const ProcessGroup& ranks, const Tensor& bucket, CallOptions call) {
      return ranks.all_reduce(bucket, ReduceOp::sum, std::move(call));
    };
  // Backward meets the parameters in about the reverse of the order in which the model lists them.
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  lay_out(order);
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    hooks_.push_back(autograd::add_leaf_hook(
        parameters_[p].second, [this, p](Tensor& gradient) { on_gradient(p, gradient); }));
}

void Reducer::detach() {
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    autograd::remove_leaf_hook(parameters_[p].second, hooks_[p]);
}

void Reducer::lay_out(const std::vector<std::size_t>& order) {
  const auto bytes = [](double mb) { return static_cast<std::int64_t>(mb * 1024 * 1024); };
  buckets_ = make_buckets(parameters_, order, bytes(options_.first_bucket_mb),
                          bytes(options_.bucket_cap_mb), group_);
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      State& state = states_[buckets_[b].parameters[i]];
      state.bucket = b;
      state.place = i;
    }
  order_ = order;
  clear();
}

const Tensor& Reducer::view(std::size_t parameter) const {
  return buckets_[states_[parameter].bucket].views[states_[parameter].place];
}

void Reducer::clear() {
  for (std::size_t b = 0; b < works_.size(); ++b) {
    try {
      // Of a backward that failed: the bucket is in use until then.
      guarded(group_, buckets_[b], [&] { works_[b].wait(); });
    } catch (...) {
      // The group is broken; the next collective says so again.
    }
  }
  works_.clear();
  arrivals_.clear();
  pending_.clear();
  for (const Bucket& bucket : buckets_) pending_.push_back(bucket.parameters.size());
  for (State& state : states_) {
    state.arrived = false;
    state.empty = false;
    state.late = {};
  }
  backward_ = 0;
}

void Reducer::on_gradient(std::size_t parameter, Tensor& gradient) {
  if (paused_ > 0) return;
  if (backward_ != autograd::current_backward()) {
    if (backward_ != 0) clear();  // the last one threw on its way
    backward_ = autograd::current_backward();
    autograd::at_end_of_backward([this] { finish(); });
  }
  State& state = states_[parameter];
  const double share = 1.0 / group_.size();
  if (!state.arrived) {
    take(parameter, gradient);
  } else {
    // Beside the bucket even where that has not started: on another rank, where gradients come in
    // another order, it may have.
    if (!state.late.defined()) state.late = zeros_like(view(parameter));
    kernels::elementwise(gradient.device()).axpy(share, gradient, state.late);
  }
  gradient = {};
  launch_ready();
}

// Copies and divides in one pass; dividing before the sum keeps 16-bit gradients from overflowing.
void Reducer::take(std::size_t parameter, const Tensor& gradient) {
  const Tensor& to = view(parameter);
  if (!(gradient.shape() == to.shape()) || gradient.dtype() != to.dtype() ||
      gradient.device() != to.device())
    fail<Error>(
        "DataParallel: parameter '{}' was {} {} on {} and is {} {} on {} now; make the "
        "DataParallel after the model has been moved",
        parameters_[parameter].first, to_string(to.dtype()), to_string(to.shape()),
        to_string(to.device()), to_string(gradient.dtype()), to_string(gradient.shape()),
        to_string(gradient.device()));
  const double share = 1.0 / group_.size();
  if (same_view(gradient, to)) to.mul_(share);
  else
    kernels::elementwise(to.device())
        .binary_scalar(kernels::Binary::multiply, gradient, share, false, to);
  states_[parameter].arrived = true;
  arrivals_.push_back(parameter);
  --pending_[states_[parameter].bucket];
}

void Reducer::launch_ready() {
  while (works_.size() < buckets_.size() && pending_[works_.size()] == 0) {
    const Bucket& bucket = buckets_[works_.size()];
    guarded(group_, bucket, [&] {
      works_.push_back(options_.communication(group_, bucket.flat, {.name = bucket.label}));
    });
  }
}

void Reducer::finish() {
  try {
    if (arrivals_.size() < parameters_.size()) {
      if (!options_.find_unused_parameters) refuse_unused();
      contribute_unused();
    }
    hand_out(options_.find_unused_parameters);
  } catch (...) {
    clear();
    throw;
  }
  std::vector<std::size_t> arrivals = std::move(arrivals_);
  clear();
  if (!reordered_) reorder(std::move(arrivals));
}

void Reducer::synchronize() {
  if (autograd::current_backward() != 0)
    fail<Error>("synchronize_gradients: called inside of a backward");
  clear();
  try {
    contribute_unused();
    hand_out(true);
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

// All ranks that miss the same parameters meet here and the group stays usable. One that misses
// none is at the next bucket instead, and both sides learn what the other does.
void Reducer::refuse_unused() {
  std::string names;
  int shown = 0;
  const auto missing = static_cast<int>(parameters_.size() - arrivals_.size());
  for (std::size_t p = 0; p < parameters_.size() && shown < 8; ++p)
    if (!states_[p].arrived) names += (shown++ ? ", '" : "'") + parameters_[p].first + "'";
  if (missing > shown) names += fmt::format(" and {} more", missing - shown);
  group_.barrier({.name = "no gradient for " + names});
  fail<Error>(
      "DataParallel: backward gave no gradient for {} of {} parameters on rank {}: {}. Set "
      "find_unused_parameters where that is meant, or requires_grad_(false) for what is never "
      "trained; the gradients of this step are lost",
      missing, parameters_.size(), group_.rank(), names);
}

// What has accumulated before, or zeros.
void Reducer::contribute_unused() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    State& state = states_[p];
    if (state.arrived) continue;
    const Tensor gradient = parameters_[p].second.grad();
    if (gradient.defined()) {
      take(p, gradient);
    } else {
      view(p).zero_();
      state.arrived = true;
      state.empty = true;
      --pending_[state.bucket];
    }
  }
  launch_ready();
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) {
    names.emplace_back();
    for (const std::size_t p : bucket.parameters) names.back().push_back(parameters_[p].first);
  }
  return names;
}

// Waits for the buckets and gives every parameter its average; with `uneven`, where the ranks may
// have used different parameters, all but those that are empty everywhere.
void Reducer::hand_out(bool uneven) {
  const auto count = static_cast<std::int64_t>(parameters_.size());
  const Tensor flags =
      empty({2, count}, {.dtype = uint8});  // what has a gradient, and what has one that came late
  auto *used = flags.data<std::uint8_t>(), *late = used + count;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    used[p] = !states_[p].empty;
    late[p] = states_[p].late.defined();
  }
  if (uneven)
    group_.all_reduce(flags, ReduceOp::max, {.name = "which parameters have gradients"}).wait();
  for (std::size_t b = 0; b < works_.size(); ++b)
    guarded(group_, buckets_[b], [&] { works_[b].wait(); });
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (late[p]) {
      Tensor& sum = states_[p].late;
      if (!sum.defined()) sum = zeros_like(view(p));
      group_.all_reduce(sum, ReduceOp::sum, late_call(parameters_[p].first)).wait();
      view(p).add_(sum);
    }
    if (used[p]) parameters_[p].second.set_grad(view(p).detach());
  }
}

void Reducer::reorder(std::vector<std::size_t> arrivals) {
  reordered_ = true;
  const Tensor order = empty({static_cast<std::int64_t>(arrivals.size())}, {.dtype = int64});
  std::copy(arrivals.begin(), arrivals.end(), order.data<std::int64_t>());
  group_.broadcast(order, 0, {.name = "the order of the gradients"}).wait();
  std::copy_n(order.data<std::int64_t>(), arrivals.size(), arrivals.begin());
  if (arrivals != order_) lay_out(arrivals);
}

}  // namespace tutti::distributed
