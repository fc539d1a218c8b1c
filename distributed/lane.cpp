#include "lane.h"

#include "../core/error.h"

#include <algorithm>
#include <thread>

namespace tutti::distributed {
namespace {

using namespace std::chrono_literals;

// After how long a collective is no longer quick, so that its ranks are asked where they are.
std::chrono::milliseconds quick(const Collective& call) {
  return std::min<std::chrono::milliseconds>(1s, call.options.timeout / 2);
}

}  // namespace

void IssuedCall::wait() {
  lane_->world().throw_if_failed(call_, group());
  order_current_stream();
}

bool IssuedCall::is_done() { return lane_->world().failure() || has_ended(); }

const GroupInfo& IssuedCall::group() const { return lane_->info(); }

Deadline IssuedCall::deadline() const {
  return Deadline::after(call_.options.timeout, waiting_since.value_or(Clock::now()));
}

// Rank 0 of the group asks all others and names who is missing. Those ask rank 0 alone, so nobody
// else asks many.
Clock::time_point IssuedCall::patient_until() const {
  return deadline().at + (group().rank == 0 ? 0s : 10s);
}

PendingState IssuedCall::pending_state() const {
  const int own = group().rank;
  // All ranks have completed what comes before, because it is done on this rank.
  PendingState state{.asks_all = own == 0, .last_completed = call_.sequence - 1, .on_device = true};
  const int asked = own == 0 ? group().size : 1;
  for (int rank = 0; rank < asked; ++rank)
    if (rank != own) state.hosts_to_ask.push_back({rank});
  return state;
}

void Lane::connect(const Tensor& id, const Collective& call) {
  is_connected_ = true;
  const std::string what = "setting up NCCL for " + describe(call, *info_);
  const Deadline deadline = Deadline::after(call.options.timeout);
  set_up(id, call, [&] { world_->check_step(what, deadline, *info_); });
}

std::shared_ptr<WorkState> Lane::submit(const Collective& call) {
  world_->throw_if_failed(call, *info_);
  const std::shared_ptr<IssuedCall> issued = issue(call);
  std::vector<std::shared_ptr<IssuedCall>> finished;  // destroyed after the lock
  if (issued->is_watched) {
    const std::lock_guard lock(mutex_);
    finished = take_finished();
    calls_.push_back(issued);
  }
  try {
    issued->launch();
    issued->is_launched = true;
  } catch (const Error& error) {
    world_->fail({.at = describe(call, *info_),
                  .what = fmt::format("rank {}: {}", info_->rank, error.what())});
    world_->throw_if_failed(call, *info_);
  }
  return issued;
}

void Lane::keep(std::shared_ptr<IssuedCall> call) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(call));
}

// Removes the calls that the device has finished and returns them. The caller holds the lock, and
// drops them, with their tensors, without it.
std::vector<std::shared_ptr<IssuedCall>> Lane::take_finished() {
  std::vector<std::shared_ptr<IssuedCall>> finished;
  while (!calls_.empty() && calls_.front()->is_launched && calls_.front()->has_ended()) {
    finished.push_back(std::move(calls_.front()));
    calls_.pop_front();
  }
  std::erase_if(kept_, [&](const auto& call) {
    const bool is_over = call->has_ended();
    if (is_over) finished.push_back(call);
    return is_over;
  });
  return finished;
}

void Lane::wait_for_device() const {
  std::shared_ptr<IssuedCall> last;
  {
    const std::lock_guard lock(mutex_);
    if (calls_.empty()) return;
    last = calls_.back();
  }
  // The watcher keeps the deadline.
  for (int polls = 0; last->is_under_way(); ++polls) {
    world_->throw_if_failed(last->call(), *info_);
    if (polls > 1000) std::this_thread::sleep_for(50us);
    else std::this_thread::yield();
  }
  world_->throw_if_failed(last->call(), *info_);
}

bool Lane::is_idle() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::none_of(calls_, [](const auto& call) { return call->is_under_way(); });
}

void Lane::abort() {
  is_ending_ = true;
  begin_abort();
}

// ---- on the watcher's thread

bool Lane::check_device() noexcept {
  try {
    guard([&] {
      std::vector<std::shared_ptr<IssuedCall>> finished;  // destroyed after the lock
      const std::lock_guard lock(mutex_);
      finished = take_finished();
    });
  } catch (const std::exception& error) {  // check() may tell the other ranks
    const std::lock_guard lock(mutex_);
    device_error_ = error.what();
  }
  try {
    if (world_->failure()) abort();
    if (!is_ending_ || is_aborting()) return is_ended_;
    const std::lock_guard lock(mutex_);
    calls_.clear();
    kept_.clear();
    return is_ended_ = true;
  } catch (const std::exception&) {
    return false;  // abort() got no thread; the next check tries again
  }
}

bool Lane::check() noexcept {
  try {
    if (is_ending_ || world_->poll()) return is_ended_;  // an earlier world has no other reader
    guard([&] {
      check_calls();
      check_error();
      check_release();
    });
  } catch (const std::exception& error) {
    world_->fail({.what = fmt::format("rank {}: {}", info_->rank, error.what())});
  }
  return false;
}

// Keeps the deadline of the oldest call, and asks where the other ranks are once it takes long.
void Lane::check_calls() {
  std::shared_ptr<IssuedCall> oldest;
  {
    const std::lock_guard lock(mutex_);
    if (calls_.empty()) return;
    oldest = calls_.front();
    const bool is_waiting = !oldest->is_launched || oldest->has_inputs();
    const bool was_waiting = oldest->waiting_since.has_value();
    // A call that this thread has seen before its launch may wait for the device's earlier work.
    if (!is_waiting) oldest->waiting_since.reset();
    else if (!was_waiting) oldest->waiting_since = Clock::now();
    if (!is_waiting || !was_waiting) return;
  }
  if (Clock::now() >= deadline_after(quick(oldest->call()), *oldest->waiting_since))
    world_->give_up(*oldest);
}

// When a rank dies, NCCL often reports it before the world knows, but without the rank's name.
void Lane::check_error() {
  const std::string error = asynchronous_error();
  const std::lock_guard lock(mutex_);
  if (!device_error_.empty()) fail<DeviceError>("{}", device_error_);
  if (error.empty()) return;
  if (!error_since_) error_since_ = Clock::now();
  if (Clock::now() - *error_since_ > 1s)
    world_->fail(
        {.at = calls_.empty() ? "" : describe(calls_.front()->call(), *info_), .what = error});
}

// Tells rank 0 of the group that this rank has released it, and ends the lane once rank 0 says that
// all have: until then other members may be receiving.
void Lane::check_release() {
  if (!is_released_) return;
  {
    const std::lock_guard lock(mutex_);
    if (!calls_.empty()) return;
  }
  if (!has_ended_work()) return;
  const auto& ranks = info_->world_ranks;
  const int own = info_->world_rank();
  if (is_connected_ && !std::exchange(has_told_release_, true))
    world_->send_release(own, ranks[0], info_->id);
  const std::size_t told = world_->releases(own, info_->id).size();
  const bool is_first = info_->rank == 0;
  if (is_connected_ && told < (is_first ? ranks.size() : 1)) return;
  for (std::size_t r = 1; is_connected_ && is_first && r < ranks.size(); ++r)
    world_->send_release(own, ranks[r], info_->id);
  abort();
}

}  // namespace tutti::distributed
