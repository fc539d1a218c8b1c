#include "group_registry.h"

#include "../../../core/cuda/check.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace tutti::distributed::nccl {
namespace {

using namespace std::chrono_literals;

// How long close() waits for the other ranks, and for graphs.
constexpr auto longest_close = 10s;

// The bytes of a rank's reports: as much as a value may have, and of all ranks half of the table.
std::size_t max_report_bytes(int ranks) {
  return std::min(rendezvous::max_value_bytes,
                  rendezvous::max_table_bytes / 2 / static_cast<std::size_t>(ranks));
}

// Failures reach the other ranks through the store, where the first to write one decides.
class StoreTransport : public World::Transport {
 public:
  explicit StoreTransport(std::shared_ptr<rendezvous::Store> store) : store_(std::move(store)) {}
  Failure send_failure(const Failure& failure) override {
    try {
      return store_->fail(failure);
    } catch (...) {
      return failure;  // the store cannot be reached or is full, so no other rank can be told
    }
  }
  std::optional<World::Notice> receive() override {
    if (auto failure = store_->failure()) return World::Notice(std::move(*failure));
    return {};
  }

 private:
  std::shared_ptr<rendezvous::Store> store_;
};

std::shared_ptr<World> make_world_over(const std::shared_ptr<rendezvous::Store>& store) {
  return std::make_shared<World>(
      World::Options{.transport = std::make_unique<StoreTransport>(store),
                     .departed_one = "its group has been destroyed",
                     .departed_many = "their groups have been destroyed"});
}

struct OpenRegistries {
  std::mutex mutex;
  std::vector<std::weak_ptr<GroupRegistry>> all;
};
OpenRegistries& open_registries() {
  static auto* registries = new OpenRegistries;
  return *registries;
}

void close_all() {
  std::vector<std::weak_ptr<GroupRegistry>> all;
  {
    const std::lock_guard lock(open_registries().mutex);
    all.swap(open_registries().all);
  }
  for (const auto& each : all)
    if (const auto registry = each.lock()) registry->close();
}

}  // namespace

GroupRegistry::GroupRegistry(std::shared_ptr<rendezvous::Store> store, int device)
    : store_(std::move(store)),
      device_(device),
      world_(make_world_over(store_)),
      recorder_(world_->recorder({.backend = "nccl", .world_ranks = {member().rank}})) {
  watch_.emplace(world_->watcher(), [this] {
    check();
    return false;
  });
}

GroupRegistry::~GroupRegistry() { close(); }

IssuedCalls RegisteredGroup::take_finished() {
  IssuedCalls finished;
  while (!calls.empty() && calls.front()->launched && calls.front()->done.passed()) {
    finished.push_back(std::move(calls.front()));
    calls.pop_front();
  }
  std::erase_if(replayed, [&](const auto& call) {
    const bool is_over = call->done.passed();
    if (is_over) finished.push_back(call);
    return is_over;
  });
  return finished;
}

ncclUniqueId GroupRegistry::shared_id(const RegisteredGroup& group, const Poll& poll) {
  const std::string key = "id/" + group.key;
  if (group.info.rank == 0) store_->set(key, make_id());
  for (auto pause = 1ms;; pause = std::min(2 * pause, 50ms)) {
    if (const auto id = store_->get(key)) return parse_id(*id, group.info.group);
    poll();
    std::this_thread::sleep_for(pause);
  }
}

void GroupRegistry::add(std::shared_ptr<RegisteredGroup> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

void GroupRegistry::check_order_of_launches(const RegisteredGroup& group,
                                            const std::shared_ptr<const void>& graph) {
  int version = 0;
  nccl::check(ncclGetVersion(&version), "ncclGetVersion");
  if (version >= NCCL_VERSION(2, 26, 0)) return;
  const std::lock_guard lock(mutex_);
  for (const auto& other : groups_) {
    const std::lock_guard other_lock(other->mutex);
    if (other.get() != &group && other->captured_in.lock() == graph)
      fail<DeviceError>(
          "nccl: a CUDA graph with collectives of the groups '{}' and '{}' needs NCCL 2.26 or "
          "later, found {}.{}, which ignores NCCL_LAUNCH_ORDER_IMPLICIT: two GPUs that begin the "
          "collectives in different orders would deadlock. Install a later NCCL, or run the step "
          "without a graph",
          other->info.group, group.info.group, version / 10000, version / 100 % 100);
  }
}

void GroupRegistry::release(RegisteredGroup& group) {
  const std::lock_guard lock(group.mutex);
  group.released = true;
}

void GroupRegistry::close() {
  if (process_.is_of_parent()) {
    // In the child of a fork everything belongs to the parent, NCCL's communicators too.
    new std::vector(std::move(groups_));
    return;
  }
  const auto patience = std::min<Clock::duration>(longest_close, member().timeout);
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    for (const auto& group : groups_) release(*group);
    changed_.wait_for(lock, patience, [&] { return world_->failure() || groups_.empty(); });
  }
  world_->watcher().stop();
  for (const auto deadline = Clock::now() + patience;
       abort_all(), !groups_.empty() && Clock::now() < deadline;)
    std::this_thread::sleep_for(1ms);
  if (!groups_.empty())
    new std::vector(std::move(groups_));  // the graphs that hold them may outlive this registry
}

void GroupRegistry::check() noexcept {
  try {
    // What this thread asks of CUDA must not disturb a graph that another thread captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (checks_ == 0) {
      cuda::check(cudaSetDevice(device_), "cudaSetDevice", "nccl");
      cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode",
                  "nccl");
    }
    // With many ranks each of them asks the store less often, because rank 0 serves it.
    if (!world_->failure() && checks_++ % (1 + member().size / 256) == 0) check_groups();
  } catch (const std::exception& error) {
    fail_world(error.what());
  } catch (...) {
    fail_world("the watcher thread caught an unknown exception");
  }
  try {
    if (world_->failure()) abort_all();
  } catch (...) {  // no memory or no thread: the next check tries again
  }
  changed_.notify_all();
}

void GroupRegistry::fail_world(const char* why) noexcept {
  try {
    world_->fail({.what = fmt::format("rank {}: {}", member().rank, why)});
  } catch (...) {  // no memory: the next check finds the same fault
  }
}

void GroupRegistry::check_groups() {
  if (world_->poll()) return;
  std::vector<std::shared_ptr<RegisteredGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  for (const auto& group : groups) count_release(*group);
  publish_calls();
  for (const auto& group : groups) {
    check_oldest_call(*group);
    if (world_->failure()) return;
  }
}

void GroupRegistry::publish_calls() {
  Reports reports;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      const std::lock_guard inner(group->mutex);
      Report& report = reports[group->key];
      report.last_issued = group->last_issued;
      report.released = group->is_counted ? 1 : 0;
      report.calls = static_cast<std::int64_t>(group->calls.size());
      for (std::size_t i = 0; i < std::min(group->calls.size(), max_fingerprints); ++i)
        report.fingerprints[i] = group->calls[i]->fingerprint;
    }
  }
  // With hundreds of groups the reports of idle ones are left out; they only make errors precise.
  std::string text = LatestCalls(recorder_->latest_calls()).text + '\0';
  text += encode(truncated_to(reports, max_report_bytes(member().size) - text.size()));
  if (text == published_) return;
  store_->set(state_key(member().rank), text);
  published_ = std::move(text);
}

// Drops the calls that are done and keeps the deadline of the oldest that is not.
void GroupRegistry::check_oldest_call(RegisteredGroup& group) {
  std::shared_ptr<IssuedCall> oldest;
  IssuedCalls finished;
  {
    const std::lock_guard lock(group.mutex);
    finished = group.take_finished();
    if (!group.calls.empty()) oldest = group.calls.front();
  }
  finished.clear();
  if (const std::string error = group.communicator.asynchronous_error(); !error.empty()) {
    // When a rank dies, NCCL often reports it before the store does, but without the rank's name.
    if (!group.error_since) group.error_since = Clock::now();
    if (Clock::now() - *group.error_since > 1s)
      return world_->fail({.at = oldest ? describe(oldest->call, group.info) : "", .what = error});
  }
  if (!oldest) return;
  {
    const std::lock_guard lock(group.mutex);
    const bool is_waiting = !oldest->launched || oldest->ready.passed();
    const bool was_waiting = oldest->waiting_since.has_value();
    // A call that this thread has seen before its launch may wait for the device's earlier work.
    if (!is_waiting) oldest->waiting_since.reset();
    else if (!was_waiting) oldest->waiting_since = Clock::now();
    if (!is_waiting || !was_waiting) return;
  }
  const OldestCall call(*this, group, *oldest);
  if (Clock::now() < call.inspect_from()) return;
  world_->give_up(call);
  ++oldest->looks;
}

// Returns whether this rank has released a group and its device has done the group's work.
bool GroupRegistry::is_idle(RegisteredGroup& group) {
  {
    const std::lock_guard lock(group.mutex);
    if (!group.released || !group.calls.empty() || group.graph_collectives > 0) return false;
    if (!group.last.recorded()) group.last.record(group.stream);
  }
  return group.last.passed();
}

// Counts this rank among those that have released a group, and frees the communicator of one that
// all members have released.
void GroupRegistry::count_release(RegisteredGroup& group) {
  const std::string key = "released/" + group.key;
  int count = 0;
  if (group.is_counted) count = parse_number(store_->get(key).value_or(""), 0).value_or(0);
  else if (is_idle(group)) count = store_->count(key);
  group.is_counted = count > 0;
  if (count < group.info.size) return;
  // Unlike ncclCommDestroy, abort() waits for no other rank.
  group.communicator.abort();
  if (!group.communicator.ending()) remove(group);
}

// Aborts the communicators of all groups at once, because the end of each waits for the device, and
// may wait for a graph that the program destroys only when it has got its error.
void GroupRegistry::abort_all() {
  std::vector<std::shared_ptr<RegisteredGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  for (const auto& group : groups) group->communicator.abort();
  std::erase_if(groups, [](const auto& group) { return group->communicator.ending(); });
  for (const auto& group : groups) remove(*group);
}

// Forgets a group whose communicator has been freed.
void GroupRegistry::remove(RegisteredGroup& group) {
  {
    const std::lock_guard lock(group.mutex);
    group.calls.clear();
    group.replayed.clear();
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const auto& other) { return other.get() == &group; });
}

void close_at_exit(const std::shared_ptr<GroupRegistry>& registry) {
  const std::lock_guard lock(open_registries().mutex);
  static const int registered = std::atexit(close_all);
  (void)registered;
  std::erase_if(open_registries().all, [](const auto& each) { return each.expired(); });
  open_registries().all.push_back(registry);
}

}  // namespace tutti::distributed::nccl
