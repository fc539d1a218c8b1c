// The MPI backend: the caller's thread exchanges the messages of small collectives, and a
// communication thread carries out large ones and those between hosts.
#include "mpi.h"

#include "../../diagnostics/fault_injection.h"
#include "communication_thread.h"
#include "library.h"
#include "mpi_transport.h"
#include "timed_barrier.h"
#include "watchdog.h"

namespace tutti::distributed::mpi {
namespace {

// A collective whose data travels with its exchange. The caller completes it in wait(); until then
// the watcher keeps its deadline.
class SmallCollective : public WorkState, public Watched {
 public:
  SmallCollective(std::shared_ptr<World> world, std::unique_ptr<Exchange> exchange)
      : world_(std::move(world)), exchange_(std::move(exchange)) {}

  void wait() override {
    const std::lock_guard lock(mutex_);
    if (!exchange_) return;
    world_->watcher().unwatch(*this);
    try {
      exchange_->wait_for_agreement(false);
      exchange_->compute();
    } catch (const std::exception& error) {
      fail(error);
      throw;
    }
    exchange_.reset();
  }

  bool is_done() override { return check(); }

  bool check() noexcept override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // the thread that waits keeps the deadline
    try {
      return !exchange_ || exchange_->poll() || world_->poll() || world_->give_up(*exchange_);
    } catch (const std::exception& error) {
      fail(error);
      return true;
    }
  }

 private:
  // Has no effect where the error is that the world has failed.
  void fail(const std::exception& error) {
    world_->fail({.at = describe(exchange_->call(), exchange_->group()), .what = error.what()});
  }

  std::shared_ptr<World> world_;
  std::mutex mutex_;
  std::unique_ptr<Exchange> exchange_;  // null when done
};

// Receives what other ranks send while this rank waits for no collective, so that it can answer
// where it is. The groups of a world share the result; it ends with the last of them, because the
// application may finalise MPI then.
std::shared_ptr<void> receive_notices(World& world) {
  return watch(world.watcher(), [&world] {
    try {
      return world.poll().has_value();
    } catch (const std::exception& error) {
      world.fail({.what = error.what()});
      return true;
    }
  });
}

class MpiBackend : public Backend {
 public:
  MpiBackend(std::shared_ptr<World> world, std::shared_ptr<void> inbox, MPI_Comm parent,
             const std::vector<int>& members, GroupInfo info)
      : Backend(std::move(info), world),
        inbox_(std::move(inbox)),
        comms_(
            std::make_shared<HostCommunicators>(std::move(world), shared_info(), parent, members)),
        thread_(std::make_shared<CommunicationThread>(comms_)) {}

  std::shared_ptr<WorkState> submit(const Collective& call) override {
    if (const auto failure = world()->poll()) throw_failure(*failure, call, info());
    auto exchange = std::make_unique<Exchange>(comms_, call);
    try {
      exchange->post();
    } catch (const std::exception& error) {  // of MPI: the others need not wait for this rank
      world()->fail({.at = describe(call, info()), .what = error.what()});
      world()->throw_if_failed(call, info());
    }
    if (!exchange->is_whole()) return thread_->submit(std::move(exchange));
    auto work = std::make_shared<SmallCollective>(world(), std::move(exchange));
    world()->watcher().watch(work);
    return work;
  }

  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override {
    return std::make_shared<MpiBackend>(world(), inbox_, comms_->all(), members,
                                        subgroup_info(members, name));
  }

  std::optional<Failure> failure() override { return world()->poll(); }

 private:
  std::shared_ptr<void> inbox_;
  std::shared_ptr<HostCommunicators> comms_;
  std::shared_ptr<CommunicationThread> thread_;  // shared with its collectives under way
};

// Waits until all processes have called from_environment().
void wait_for_all_to_start(const GroupInfo& info) {
  TimedBarrier barrier(TimedBarrier::Purpose::start);
  barrier.wait(Deadline::after(info.timeout));
  process().start_timed_out = barrier.timed_out();
  process().failed_start = barrier.absent().empty() ? "" : " because " + barrier.absent();
  if (barrier.absent().empty()) return;
  CollectiveInfo where{
      .rank = info.rank, .world_size = info.size, .operation = "from_environment", .name = {}};
  if (!barrier.timed_out())
    throw DistributedError(
        fmt::format("from_environment: rank {} waits for all {} processes to call it, but {}",
                    info.rank, info.size, barrier.absent()),
        std::move(where));
  throw TimeoutError(
      fmt::format("from_environment: rank {} waited {} for all {} processes to call it, but {}; "
                  "look for one that hangs or has ended before, or pass a longer timeout",
                  info.rank, distributed::to_string(info.timeout), info.size, barrier.absent()),
      std::move(where));
}

}  // namespace

std::string why_unavailable() { return {}; }

std::shared_ptr<Backend> make_world(const GroupInfo& launch) {
  initialize(launch);
  GroupInfo info{.group = "world", .backend = "mpi", .timeout = launch.timeout};
  check(MPI_Comm_rank(MPI_COMM_WORLD, &info.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &info.size), "MPI_Comm_size");
  process().rank = info.rank;
  if (info.size < launch.size)
    fail<DistributedError>(
        "from_environment: {} processes were expected, but MPI sees {}; start them with this MPI's "
        "own mpirun, or with 'srun --mpi=pmix' (or pmi2)",
        launch.size, info.size == 1 ? "this one alone" : fmt::format("only {}", info.size));
  if (info.size == 1) return nullptr;
  faults::read_environment();
  faults::inject(Fault::Moment::start, info.rank, "world");
  wait_for_all_to_start(info);
  find_hosts(info);
  info.world_ranks = all_ranks(info.size);
  const auto world =
      std::make_shared<World>(World::Options{.transport = std::make_unique<MpiTransport>(info.size),
                                             .rank = info.rank,
                                             .departed_one = "its process is exiting",
                                             .departed_many = "their processes are exiting",
                                             .departure_delay = std::chrono::milliseconds(200),
                                             .has_watcher = allows_threads(),
                                             .at_exit = finalize_at_exit});
  keep_until_exit(world);
  return std::make_shared<MpiBackend>(world, receive_notices(*world), MPI_COMM_WORLD,
                                      info.world_ranks, info);
}

}  // namespace tutti::distributed::mpi
