#include "runtime.h"

#include "../../diagnostics/fault_injection.h"
#include "exchange.h"
#include "gate.h"
#include "mpi.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::atomic<bool> somebody_missing{false};
std::chrono::milliseconds exit_timeout{0};
std::uint64_t process = 0;  // that uses MPI: its generation + 1

// Never destroyed by itself: it has to go before MPI does.
std::shared_ptr<Domain>& world_domain() {
  static auto& domain = *new std::shared_ptr<Domain>;
  return domain;
}

// Waits for the others at the end; the text says for whom in vain. They may be waiting for us:
// after a moment they are told that we will not come, unless our threads still do what has been
// started. Where a rank is known to be missing, those that are not have a moment to say so.
std::string gather_at_exit() {
  const auto begin = Clock::now();
  const auto deadline =
      deadline_after(somebody_missing ? std::min(exit_timeout, 1000ms) : exit_timeout);
  bool told = false;
  for (;;) {
    Gate gate(Gate::Purpose::exit);
    gate.wait(deadline, [&] {
      if (told || under_way() > 0 || Clock::now() < begin + 100ms) return;
      if (world_domain()) world_domain()->leave();
      told = true;
    });
    // Who came for something else learns at the gate that it is in vain, and comes again.
    if (gate.absent().empty() || gate.late()) return gate.absent();
    std::this_thread::sleep_for(1ms);
  }
}

// Waits until the library's other threads are done with MPI, and keeps them from it; false where
// that takes too long.
bool take_mpi() {
  const auto deadline = deadline_after(exit_timeout);
  while (under_way() > 0 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  return in_use().try_lock_until(deadline);
}

void finish_at_exit() {
  if (is_gone()) return;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  faults::inject(Fault::Moment::exit, rank, "world");
  const std::string absent = gather_at_exit();
  if (!somebody_missing && absent.empty() && take_mpi()) {
    world_domain().reset();
    MPI_Finalize();
    return;
  }
  std::fprintf(
      stderr, "tutti: rank %d is at its exit and ends the job: %s\n", rank,
      absent.empty() ? "the communication of a collective is still under way" : absent.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

}  // namespace

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail<DistributedError>("{} failed: {}", call, text);
}

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

bool threads_allowed() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
}

void ensure_initialized(std::chrono::milliseconds timeout) {
  if (is_finalized())
    fail<DistributedError>("from_environment: MPI has already been finalised in this process");
  if (process == 0) process = process_generation() + 1;
  if (is_initialized()) return;
  // Read at MPI_Init; what the user has set, by mpirun --mca or in the environment, wins. "vader"
  // became "sm" in Open MPI 5.
  const std::string eager = std::to_string(eager_bytes);
  for (const char* name : {"OMPI_MCA_btl_vader_eager_limit", "OMPI_MCA_btl_sm_eager_limit"})
    setenv(name, eager.c_str(), 0);
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  exit_timeout = timeout;
  std::atexit(finish_at_exit);
}

bool is_gone() { return is_finalized() || (process != 0 && process != process_generation() + 1); }

std::shared_timed_mutex& in_use() {
  static auto& mutex = *new std::shared_timed_mutex;
  return mutex;
}

std::atomic<int>& under_way() {
  static std::atomic<int> count{0};
  return count;
}

void note_somebody_missing() { somebody_missing = true; }

void keep_world(std::shared_ptr<Domain> domain) { world_domain() = std::move(domain); }

void keep_for_ever(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

Communicator::Communicator(MPI_Comm parent, const std::vector<int>& members, int tag) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some),
        "MPI_Group_incl");
  const int code = MPI_Comm_create_group(parent, some, tag, &comm_);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check(code, "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Communicator::~Communicator() {
  if (comm_ != MPI_COMM_NULL && !is_gone()) MPI_Comm_free(&comm_);
}

Domain::Domain(int size) : size_(size) {
  std::vector<int> everybody(static_cast<std::size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  channel_ = Communicator(MPI_COMM_WORLD, everybody, 0);
  listen();
}

Domain::~Domain() {
  watcher_.reset();
  if (!is_gone() && receive_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  }
  if (failure_) channel_.abandon();
}

void Domain::listen() {
  check(MPI_Irecv(incoming_.get(), sizeof(Notice), MPI_BYTE, MPI_ANY_SOURCE, 0, channel_.get(),
                  &receive_),
        "MPI_Irecv");
}

void Domain::break_with(Failure why) {
  if (why.timeout) somebody_missing = true;
  failure_ = std::move(why);
}

// Nobody waits for it: a process that is gone must not hold up the others.
void Domain::tell_everybody(std::shared_ptr<Notice> notice) {
  int me = 0;
  MPI_Comm_rank(channel_.get(), &me);
  keep_for_ever(notice);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == me) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(notice.get(), sizeof(Notice), MPI_BYTE, rank, 0, channel_.get(), &request) ==
        MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

void Domain::fail(Failure why) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  const auto notice = std::make_shared<Notice>(
      Notice{.kind = Kind::failure, .timeout = why.timeout, .at = {}, .what = {}});
  std::memcpy(notice->at, why.at.data(), std::min(why.at.size(), sizeof(notice->at) - 1));
  std::memcpy(notice->what, why.what.data(), std::min(why.what.size(), sizeof(notice->what) - 1));
  break_with(std::move(why));
  tell_everybody(notice);
}

void Domain::leave() {
  const std::lock_guard lock(mutex_);
  if (!failure_)
    tell_everybody(std::make_shared<Notice>(
        Notice{.kind = Kind::leaving, .timeout = 0, .at = {}, .what = {}}));
}

std::optional<Failure> Domain::failure() {
  const std::lock_guard lock(mutex_);
  while (!failure_) {
    int arrived = 0;
    MPI_Status status;
    check(MPI_Test(&receive_, &arrived, &status), "MPI_Test");
    if (!arrived) break;
    if (incoming_->kind == Kind::leaving) {
      left_.emplace(status.MPI_SOURCE, Clock::now());
      somebody_left_ = true;
      listen();
    } else {
      break_with(
          {.at = incoming_->at, .what = incoming_->what, .timeout = incoming_->timeout != 0});
    }
  }
  return failure_;
}

std::vector<int> Domain::left_of(MPI_Comm comm, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  std::vector<int> gone;
  MPI_Group here = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  check(MPI_Comm_group(comm, &here), "MPI_Comm_group");
  check(MPI_Comm_group(channel_.get(), &all), "MPI_Comm_group");
  for (const int rank : ranks) {
    int in_world = MPI_UNDEFINED;
    MPI_Group_translate_ranks(here, 1, &rank, all, &in_world);
    const auto found = left_.find(in_world);
    if (found != left_.end() && Clock::now() >= found->second + 200ms) gone.push_back(rank);
  }
  MPI_Group_free(&here);
  MPI_Group_free(&all);
  return gone;
}

void Domain::watch(const std::shared_ptr<Watched>& work) {
  const std::lock_guard lock(watching_);
  work->place_ = watched_.insert(watched_.end(), work);
  if (!watcher_ && threads_allowed()) watcher_.emplace([this] { look(); });
}

void Domain::unwatch(Watched& work) {
  const std::lock_guard lock(watching_);
  if (!work.place_) return;
  watched_.erase(*work.place_);
  work.place_.reset();
}

void Domain::look() {
  const std::shared_lock mpi(in_use(), std::try_to_lock);
  if (!mpi || is_gone()) return;
  std::vector<std::shared_ptr<Watched>> works;
  {
    const std::lock_guard lock(watching_);
    works.assign(watched_.begin(), watched_.end());
  }
  for (const auto& work : works)
    if (work->look()) unwatch(*work);
  // Letting go of the last of them may destroy this object.
}

GroupCommunicator::~GroupCommunicator() {
  try {
    if (!is_gone() && domain_->failure()) comm_.abandon();
  } catch (const std::exception&) {  // of MPI, which then is as good as failed
    comm_.abandon();
  }
}

void pause(std::int64_t spins, bool patient) {
  using namespace std::chrono_literals;
  if (patient && spins > 50) std::this_thread::sleep_for(20us);
  else if (spins > 20000) std::this_thread::sleep_for(50us);
  else if (spins > 16) sched_yield();
}

}  // namespace tutti::distributed::mpi
