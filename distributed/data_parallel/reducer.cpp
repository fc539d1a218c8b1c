#include "reducer.h"

#include "../../autograd/engine.h"
#include "../../core/convert.h"
#include "../../core/create.h"
#include "../../core/cuda/graph.h"
#include "../../kernels/kernels.h"
#include "../backend.h"
#include "../diagnostics/replica_check.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::distributed {
namespace {

// Returns `gradient` as flat memory in the order of the bucket's view: itself in nearly all cases.
Tensor in_layout_of(const Tensor& view, const Tensor& gradient) {
  if (gradient.strides() == view.strides()) return gradient;
  const Tensor copy = empty_like(view, gradient.dtype());
  copy.copy_(gradient);
  return copy;
}

// Runs a communication hook, or waits for what it has started. If that throws, the group is
// aborted, because the other ranks may be waiting for this one. A group that is broken stays as it
// is.
template <class Run>
void abort_on_error(const ProcessGroup& group, const Bucket& bucket, const Run& run) {
  try {
    run();
  } catch (...) {
    group.abort(fmt::format("the communication hook failed at {}: {}", bucket.label,
                            text_of(std::current_exception())));
    throw;
  }
}

std::int64_t optimizer_steps(const Tensor& parameter) {
  return parameter.meta()->optimizer_steps.load(std::memory_order_relaxed);
}

}  // namespace

Reducer::Reducer(StateDict parameters, ProcessGroup group, DataParallelOptions options,
                 std::string identity)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(std::move(options)),
      uncounted_(autograd::backwards_begun()),
      identity_(std::move(identity)),
      last_parameter_number_(autograd::last_parameter_number),
      reordered_(!options_.reorder_buckets || options_.find_unused_parameters) {
  if (!options_.communication)
    options_.communication = [](const ProcessGroup& ranks, const Bucket& bucket, CallOptions call) {
      return ranks.all_reduce(bucket.flat, ReduceOp::sum, std::move(call));
    };
  std::erase_if(parameters_, [this](const auto& entry) {
    if (!entry.second.requires_grad()) frozen_.push_back(entry);
    return !entry.second.requires_grad();
  });
  states_.resize(parameters_.size());
  // Gradients arrive in about the reverse of the order in which the model lists its parameters.
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  lay_out_buckets(order);
  const auto add_hook = [&](const auto& entry, const std::string& owner, autograd::LeafHook hook) {
    const auto id = autograd::add_leaf_hook(entry.second, std::move(hook), true, owner);
    hooks_.emplace_back(nullptr,
                        [leaf = entry.second, id](void*) { autograd::remove_leaf_hook(leaf, id); });
  };
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    states_[p].steps_before = optimizer_steps(parameters_[p].second);
    add_hook(parameters_[p], "'" + parameters_[p].first + "'",
             [this, p](Tensor& gradient) { on_gradient(p, gradient); });
  }
  for (const auto& entry : frozen_)
    add_hook(entry, "", [this](Tensor&) {
      if (paused_ == 0) check_parameters();
    });
}

// Gradients keep the layout that the ranks agreed on when this object was made. The format of a
// parameter may have changed since, on some ranks only.
void Reducer::lay_out_buckets(const std::vector<std::size_t>& order) {
  const auto bytes = [](double mb) { return saturating_cast<std::int64_t>(mb * 1024 * 1024); };
  StateDict layouts = parameters_;
  for (std::size_t p = 0; p < layouts.size() && !buckets_.empty(); ++p) layouts[p].second = view(p);
  buckets_ =
      make_buckets(layouts, order, bytes(options_.first_bucket_mb), bytes(options_.bucket_cap_mb));
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      ParameterState& state = states_[buckets_[b].parameters[i]];
      state.bucket = b;
      state.index = i;
    }
  order_ = order;
  reset();
}

void Reducer::pause(bool on) {
  if (on && paused_++ == 0) paused_since_ = autograd::backwards_begun();
  if (!on && --paused_ == 0) uncounted_ += autograd::backwards_begun() - paused_since_;
}

const Tensor& Reducer::view(std::size_t parameter) const {
  return buckets_[states_[parameter].bucket].views[states_[parameter].index];
}

// Makes ready for the next backward. After a backward that has failed, buckets may still be on
// their way: they must not be written to before their collectives are done.
void Reducer::reset() {
  for (std::size_t b = 0; b < works_.size(); ++b) {
    try {
      abort_on_error(group_, buckets_[b], [&] { works_[b].wait(); });
    } catch (...) {
      // The group is broken; its next collective throws the same error.
    }
  }
  works_.clear();
  arrivals_.clear();
  pending_.clear();
  for (const Bucket& bucket : buckets_) pending_.push_back(bucket.parameters.size());
  for (ParameterState& state : states_)
    state = {.bucket = state.bucket, .index = state.index, .steps_before = state.steps_before};
  backward_ = 0;
}

void Reducer::on_gradient(std::size_t parameter, Tensor& gradient) {
  group_.implementation()->check_thread("DataParallel");  // before it touches what threads share
  if (paused_ > 0) return;
  if (backward_ != autograd::current_backward()) {
    reset();  // the last backward may have thrown before its end
    backward_ = autograd::current_backward();
    autograd::at_end_of_backward([this] { finish_backward(); });
    begin_averaging();
    if (options_.find_unused_parameters) look_ahead();
  }
  keep_for_bucket(parameter, gradient);
  gradient = {};
  if (!starts_at_end_) start_full_buckets();
}

// Says which backward of which object this is, and how many optimizer steps came before, so that a
// rank that has left one out does not average its gradients with those of another step. A backward
// through none of the parameters counts. The steps are those of the parameter that has seen most:
// ranks may divide the parameters among their optimizers. A forward without a backward shows in the
// uses of the parameters; ranks that may use different ones may also leave different ones without a
// gradient, so there it does not.
void Reducer::begin_averaging() {
  check_parameters();
  std::int64_t left_out = 0, steps = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& parameter = parameters_[p].second;
    left_out += parameter.meta()->uses_without_backward.load(std::memory_order_relaxed);
    steps = std::max(steps, optimizer_steps(parameter) - states_[p].steps_before);
  }
  step_ = fmt::format(", backward {}", autograd::backwards_begun() - uncounted_);
  if (left_out != 0 && !options_.find_unused_parameters)
    step_ += fmt::format(", after a forward without backward: {} uses of parameters", left_out);
  step_ += fmt::format(", {} optimizer step{}{}", steps, steps == 1 ? "" : "s", identity_);
}

// Finds the parameters that the backward which has begun will not reach, and fills their places in
// the buckets now. Ranks that use different parameters then start a bucket at different points of
// the backward. So this rank does that only where nothing else in the backward may call a
// collective whose order among the buckets counts: an operation, or a hook of another DataParallel
// or of the user. docs/design/data_parallel.md says why that suffices.
void Reducer::look_ahead() {
  const bool any_order_counts = std::ranges::any_of(buckets_, [this](const Bucket& bucket) {
    return group_.capabilities(bucket.flat.device()).device_waits;
  });
  const void* const group = any_order_counts ? nullptr : group_.implementation().get();
  std::set<const void*> reached;
  std::size_t hooks = 0, own = 0;
  for (const Tensor& leaf : autograd::leaves_reached_alone(group)) {
    reached.insert(leaf.id());
    hooks += leaf.meta()->hooks.size();
  }
  for (const auto& [name, parameter] : parameters_) own += reached.contains(parameter.id());
  const bool is_alone = own > 0 && own == hooks;
  starts_at_end_ = any_order_counts && !is_alone;
  if (is_alone) fill_missing_gradients(reached);
}

// Compares the parameters with what they were when this object was made, before the first bucket of
// a backward starts.
void Reducer::check_parameters() const {
  for (const auto& [name, parameter] : frozen_)
    if (parameter.requires_grad())
      fail_together(fmt::format("parameter '{}' was frozen when this DataParallel was made", name),
                    "its gradient would not be averaged; make the DataParallel again after "
                    "unfreezing");
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor &now = parameters_[p].second, &before = view(p);
    if (now.shape() == before.shape() && now.dtype() == before.dtype() &&
        now.device() == before.device())
      continue;
    fail_together(
        fmt::format("parameter '{}' was {} {} on {} and is {} {} on {} now", parameters_[p].first,
                    to_string(before.dtype()), to_string(before.shape()),
                    to_string(before.device()), to_string(now.dtype()), to_string(now.shape()),
                    to_string(now.device())),
        "make the DataParallel after the model has been moved");
  }
}

// Keeps a gradient until its bucket is filled.
void Reducer::keep_for_bucket(std::size_t parameter, const Tensor& gradient) {
  states_[parameter].gradient = in_layout_of(view(parameter), gradient);
  arrivals_.push_back(parameter);
  count_arrival(parameter);
}

// Fills the bucket of a parameter if that was its last one. On the CPU it copies each gradient at
// once, while the caches still hold it, since launches cost nothing there.
void Reducer::count_arrival(std::size_t parameter) {
  ParameterState& state = states_[parameter];
  state.arrived = true;
  const Bucket& bucket = buckets_[state.bucket];
  if (--pending_[state.bucket] == 0 || bucket.flat.device().is_cpu()) fill_bucket(bucket);
}

// Copies and divides the gradients of a bucket in one pass. Dividing before the sum keeps 16-bit
// gradients from overflowing.
void Reducer::fill_bucket(const Bucket& bucket) {
  std::vector<Tensor> gradients, views;
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    Tensor& gradient = states_[bucket.parameters[i]].gradient;
    if (!gradient.defined()) continue;
    gradients.push_back(std::exchange(gradient, {}));
    views.push_back(bucket.views[i]);
  }
  kernels::on(bucket.flat.device()).optimizer.scale_into(gradients, views, 1.0 / group_.size());
}

void Reducer::start_full_buckets() {
  while (works_.size() < buckets_.size() && pending_[works_.size()] == 0) {
    const Bucket& bucket = buckets_[works_.size()];
    abort_on_error(group_, bucket, [&] {
      works_.push_back(options_.communication(group_, bucket, call(bucket.label)));
    });
  }
}

void Reducer::finish_backward() {
  if (options_.find_unused_parameters) {
    fill_missing_gradients();
    start_full_buckets();
  }
  check_new_parameters();
  if (arrivals_.size() < parameters_.size() && !options_.find_unused_parameters)
    fail_for_missing_gradients();
  std::vector<std::size_t> arrivals = arrivals_;
  average_gradients(options_.find_unused_parameters);
  if (!reordered_) follow_order_of_rank_0(std::move(arrivals));
  compare_replicas_once();
}

void Reducer::synchronize() {
  group_.implementation()->check_thread("DataParallel");
  if (autograd::current_backward() != 0)
    fail<Error>("synchronize_gradients: called inside of a backward; call it after backward()");
  reset();
  begin_averaging();
  fill_missing_gradients();
  start_full_buckets();
  average_gradients(true);
  compare_replicas_once();
}

// Ranks that fail for the same reason all call a barrier first, so that the group stays usable. A
// rank that does not fail is at its next bucket instead; the error for that shows both sides.
void Reducer::fail_together(const std::string& reason, const std::string& advice) const {
  group_.refuse({.name = reason, .step = identity_, .of_model = true}, advice);
  fail<Error>("DataParallel: {} (rank {}): {}; the gradients of this step are lost", reason,
              group_.rank(), advice);
}

void Reducer::fail_for_missing_gradients() const {
  std::string names;
  std::size_t shown = 0;
  const std::size_t missing = parameters_.size() - arrivals_.size();
  for (std::size_t p = 0; p < parameters_.size() && shown < 8; ++p)
    if (!states_[p].arrived) names += (shown++ ? ", '" : "'") + parameters_[p].first + "'";
  if (missing > shown) names += fmt::format(" and {} more", missing - shown);
  fail_together("no gradient for " + names,
                fmt::format("{} of {} parameters; set find_unused_parameters where that is meant, "
                            "or make the DataParallel after freezing what is never trained",
                            missing, parameters_.size()));
}

// Finds a layer that the model has got since, such as a new head. Parameters without a hook that
// are older were left out on purpose.
void Reducer::check_new_parameters() const {
  const Tensor newest = autograd::newest_parameter_without_hook();
  if (newest.defined() && newest.meta()->parameter_number > last_parameter_number_)
    fail_together(fmt::format("a parameter of shape {} was added after this DataParallel was made",
                              to_string(newest.shape())),
                  "its gradient is not averaged; make the DataParallel again after changing the "
                  "model, or freeze what is not trained");
}

// Finds weights that were loaded on one rank alone after the construction. At the end of a backward
// the place of these collectives among all others is the same on every rank.
void Reducer::compare_replicas_once() {
  if (replicas_compared_ || parameters_.empty() || cuda::is_capturing(view(0).device())) return;
  StateDict all = parameters_;
  all.insert(all.end(), frozen_.begin(), frozen_.end());
  check_replicas(all, group_,
                 "; load weights on every rank, or before the DataParallel is made, which copies "
                 "those of rank 0");
  replicas_compared_ = true;
}

// Fills the places in the buckets of all parameters but `except` that have got no gradient, with
// what no_sync() scopes and earlier backwards have accumulated, or with zeros.
void Reducer::fill_missing_gradients(const std::set<const void*>& except) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    ParameterState& state = states_[p];
    const Tensor& parameter = parameters_[p].second;
    if (state.arrived || except.contains(parameter.id())) continue;
    if (const Tensor gradient = parameter.grad(); gradient.defined()) {
      keep_for_bucket(p, gradient);
      parameter.set_grad({});
    } else {
      view(p).zero_();
      state.unused = true;
      count_arrival(p);
    }
  }
}

// Waits for the buckets, which have all started, and gives every parameter its average. Where the
// ranks may have used different parameters, one that no rank has used keeps its gradient undefined.
void Reducer::average_gradients(bool ranks_may_differ) {
  if (ranks_may_differ) share_used_parameters();
  for (std::size_t b = 0; b < works_.size(); ++b)
    abort_on_error(group_, buckets_[b], [&] { works_[b].wait(); });
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    if (!states_[p].unused) parameters_[p].second.set_grad(view(p).detach());
  reset();
}

// Lets those parameters alone be unused that no rank has used.
void Reducer::share_used_parameters() {
  const Tensor flags = empty({static_cast<std::int64_t>(parameters_.size())}, {.dtype = uint8});
  auto* used = flags.data<std::uint8_t>();
  for (std::size_t p = 0; p < parameters_.size(); ++p) used[p] = !states_[p].unused;
  group_.all_reduce(flags, ReduceOp::max, call("which parameters have gradients")).wait();
  for (std::size_t p = 0; p < parameters_.size(); ++p) states_[p].unused = !used[p];
}

void Reducer::follow_order_of_rank_0(std::vector<std::size_t> arrivals) {
  reordered_ = true;
  const Tensor order = empty({static_cast<std::int64_t>(arrivals.size())}, {.dtype = int64});
  std::copy(arrivals.begin(), arrivals.end(), order.data<std::int64_t>());
  group_.broadcast(order, 0, call("the order of the gradients")).wait();
  std::copy_n(order.data<std::int64_t>(), arrivals.size(), arrivals.begin());
  if (arrivals != order_) lay_out_buckets(arrivals);
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) names.push_back(bucket.names);
  return names;
}

}  // namespace tutti::distributed
