// The MPI backend: small collectives on the caller's thread, complete when the messages of the
// exchange are in; large ones on the Bulk thread. A group has two communicators, for the exchange
// and for bulk data.
#include "../../diagnostics/fault_injection.h"
#include "bulk.h"
#include "gate.h"
#include "mpi.h"

#include <numeric>

namespace tutti::distributed::mpi {
namespace {

class SmallWork : public Work::State, public Watched {
 public:
  SmallWork(std::shared_ptr<Domain> domain, std::unique_ptr<Exchange> exchange,
            const Collective& call, const Backend::Place& place,
            std::shared_ptr<std::atomic<std::int64_t>> met)
      : domain_(std::move(domain)),
        exchange_(std::move(exchange)),
        call_(call),
        place_(place),
        met_(std::move(met)),
        deadline_(deadline_after(call.timeout)) {}
  void wait() override {
    const std::lock_guard lock(mutex_);
    if (!exchange_) return;
    domain_->unwatch(*this);
    try {
      meet(*exchange_, call_, place_, *met_, false, deadline_);
      exchange_->compute(call_);
    } catch (const std::exception& error) {
      domain_->fail({.at = describe(call_, place_),
                     .what = error.what()});  // no effect where it has failed already
      throw;
    }
    exchange_.reset();
  }
  bool is_done() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock && (!exchange_ || exchange_->poll() || domain_->failure());
  }
  bool look() noexcept override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // who waits for it keeps the deadline
    try {
      return !exchange_ || exchange_->poll() || domain_->failure() ||
             give_up(*exchange_, call_, place_, *met_, deadline_);
    } catch (const std::exception& error) {
      domain_->fail({.at = describe(call_, place_), .what = error.what()});
      return true;
    }
  }

 private:
  std::shared_ptr<Domain> domain_;
  std::mutex mutex_;
  std::unique_ptr<Exchange> exchange_;
  Collective call_;
  Backend::Place place_;
  std::shared_ptr<std::atomic<std::int64_t>> met_;
  std::chrono::steady_clock::time_point deadline_;
};

class MpiBackend : public Backend {
 public:
  MpiBackend(std::shared_ptr<Domain> domain, MPI_Comm parent, const std::vector<int>& members,
             Place place)
      : Backend(std::move(place)),
        domain_(std::move(domain)),
        comm_(std::make_shared<GroupCommunicator>(domain_, parent, members, 1)),
        bulk_(
            std::make_shared<Bulk>(std::make_shared<GroupCommunicator>(domain_, parent, members, 2),
                                   this->place(), met_)) {}

  bool accepts(Device device) const override { return device.is_cpu(); }

  std::shared_ptr<Work::State> submit(const Collective& call) override {
    if (const auto failure = domain_->failure()) raise(*failure, call, place());
    auto exchange = std::make_unique<Exchange>(comm_, call, place());
    if (!exchange->has_data()) return bulk_->submit(call, std::move(exchange));
    auto work = std::make_shared<SmallWork>(domain_, std::move(exchange), call, place(), met_);
    domain_->watch(work);
    return work;
  }

  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override {
    return std::make_shared<MpiBackend>(domain_, comm_->get(), members, place_in(members, name));
  }

  void abort(const std::string& cause) override {
    domain_->fail({.what = fmt::format("rank {} gave up: {}", place().rank, cause)});
  }

  std::optional<Failure> failure() override { return domain_->failure(); }

 private:
  std::shared_ptr<Domain> domain_;
  std::shared_ptr<std::atomic<std::int64_t>> met_ = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<GroupCommunicator> comm_;
  std::shared_ptr<Bulk> bulk_;  // shared with the calls under way
};

}  // namespace

std::shared_ptr<Backend> make_world(std::chrono::milliseconds timeout, int expected_size,
                                    int local_rank) {
  ensure_initialized(timeout);
  Backend::Place place{.group = "world", .kind = "mpi", .timeout = timeout};
  check(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &place.size), "MPI_Comm_size");
  if (place.size < expected_size)
    fail<DistributedError>(
        "from_environment: {} processes were expected, but MPI sees {}; start them with this MPI's "
        "own mpirun, or with 'srun --mpi=pmix' (or pmi2)",
        expected_size, place.size == 1 ? "this one alone" : fmt::format("only {}", place.size));
  if (place.size == 1) return nullptr;
  faults::read_environment();
  faults::inject(Fault::Moment::start, place.rank, "world");
  Gate gate(Gate::Purpose::start);
  gate.wait(deadline_after(timeout));
  if (!gate.absent().empty()) {
    CollectiveInfo info{
        .rank = place.rank, .world_size = place.size, .operation = "from_environment", .name = {}};
    if (!gate.late())
      throw DistributedError(
          fmt::format("from_environment: rank {} waits for all {} processes to call it, but {}",
                      place.rank, place.size, gate.absent()),
          std::move(info));
    note_somebody_missing();
    throw TimeoutError(
        fmt::format("from_environment: rank {} waited {} for all {} processes to call it, but {}; "
                    "look for one that hangs or has ended before, or pass a longer timeout",
                    place.rank, distributed::to_string(timeout), place.size, gate.absent()),
        std::move(info));
  }
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  check(MPI_Comm_rank(host, &place.local_rank), "MPI_Comm_rank");
  MPI_Comm_free(&host);
  if (local_rank >= 0) place.local_rank = local_rank;
  std::vector<int> everybody(static_cast<std::size_t>(place.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto domain = std::make_shared<Domain>(place.size);
  keep_world(domain);
  return std::make_shared<MpiBackend>(domain, MPI_COMM_WORLD, everybody, place);
}

}  // namespace tutti::distributed::mpi
