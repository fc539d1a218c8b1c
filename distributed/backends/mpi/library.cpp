#include "library.h"

#include "../../../core/fork.h"
#include "../../diagnostics/fault_injection.h"
#include "../../flight_recorder_file.h"
#include "exchange.h"
#include "mpi.h"
#include "timed_barrier.h"
#include "watchdog.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;

// Waits until all processes have come to their exit. Returns an empty text then, else who has not.
// A rank may evaluate or save for longer than the timeout: while it answers, the others wait. Those
// that wait for a collective of this rank, and ask, are told that it has departed, unless its own
// threads still work on collectives. Where a rank is known to be missing, the others get one
// second, in which those that are there can say so.
std::string wait_for_all_at_exit(int rank) {
  Process& own = process();
  const std::chrono::milliseconds timeout = own.timeout;
  const auto deadline = Deadline::after(own.lacks_a_rank() ? std::min(timeout, 1000ms) : timeout);
  World* const world = own.latest_world.get();
  const auto in_between = [&, departed = false]() mutable {
    if (!world) return;
    if (!departed && own.unfinished_collectives == 0) {
      world->depart(rank);
      departed = true;
    }
    world->poll();  // answers the others
  };
  const auto lives = [&, said = false](std::span<const int> ranks) mutable {
    if (own.lacks_a_rank() || !world || !world->all_answer(ranks)) return false;
    if (!std::exchange(said, true) && rank <= 1)  // others would say the same
      std::fputs(fmt::format("tutti: rank {} is exiting and waits for {}, still at work\n", rank,
                             ranks_to_string(ranks))
                     .c_str(),
                 stderr);
    return true;
  };
  if (!world) own.barrier_has_failed = true;  // the others may wait in from_environment
  for (;;) {
    TimedBarrier barrier(TimedBarrier::Purpose::exit);
    barrier.wait(deadline, in_between, lives);
    // A rank that waits for another purpose learns here that it must try again.
    if (barrier.absent().empty() || barrier.timed_out()) return barrier.absent();
    std::this_thread::sleep_for(1ms);
  }
}

// Waits until the library's own threads have finished their collectives, and keeps them from
// calling MPI again. Returns false where that takes too long.
bool stop_mpi_use() {
  Process& own = process();
  const auto deadline = deadline_after(own.timeout);
  while (own.unfinished_collectives > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  return own.is_taken = own.usage.try_lock_until(deadline);
}

std::vector<std::shared_ptr<World>> live_worlds() {
  std::vector<std::shared_ptr<World>> all;
  for (const auto& each : process().worlds)
    if (auto world = each.lock()) all.push_back(std::move(world));
  return all;
}

// Gives the devices the timeout for the calls of the lanes of all worlds.
void wait_for_devices() {
  for (const auto& world : live_worlds()) world->wait_for_devices(process().timeout.load());
}

void end_lanes() {
  const std::chrono::milliseconds timeout = process().timeout;
  for (const auto& world : live_worlds())
    world->end_lanes(std::min<std::chrono::milliseconds>(10s, timeout));
}

// Ends the threads that would destroy a world with its last lane while MPI is being finalised.
void stop_watchers() {
  for (const auto& world : live_worlds()) world->watcher().stop();
}

// MPI_Finalize calls this before all else, so that an application that finalises MPI itself keeps
// the library's own threads out of it too. Each collective under way ends at its deadline.
int take_mpi_from_application(MPI_Comm, int, void*, void*) {
  Process& own = process();
  if (!own.is_taken) {
    wait_for_devices();
    end_lanes();
  }
  while (!own.is_taken && own.unfinished_collectives > 0) std::this_thread::sleep_for(1ms);
  if (!std::exchange(own.is_taken, true)) own.usage.lock();
  stop_watchers();
  return MPI_SUCCESS;
}

// Describes the MPI library: its version, the level of threads that it grants, and MPICH's device
// or the transports that Open MPI has loaded. MPI does not tell which of these a message takes.
std::string describe_library() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0, level = 0;
  MPI_Get_library_version(version, &length);
  MPI_Query_thread(&level);
  std::ranges::replace(version, '\t', ' ');
  std::set<std::string> transports;
  if (const char* device = std::strstr(version, "Device:"))
    transports.emplace(device, std::strcspn(device, "\n"));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::strstr(version, "Open MPI") && std::getline(maps, line);)
    for (const char* kind : {"/mca_btl_", "/mca_mtl_", "/mca_pml_"})
      if (const std::size_t at = line.find(kind); at != std::string::npos)
        transports.insert(line.substr(at + 5, line.find('.', at) - at - 5));
  return fmt::format("{}, MPI_THREAD_{}{}{}", std::string(version, std::strcspn(version, ",\n")),
                     level == MPI_THREAD_MULTIPLE     ? "MULTIPLE"
                     : level == MPI_THREAD_SERIALIZED ? "SERIALIZED"
                     : level == MPI_THREAD_FUNNELED   ? "FUNNELED"
                                                      : "SINGLE",
                     transports.empty() ? "" : ", with ", fmt::join(transports, " "));
}

}  // namespace

[[gnu::weak]] Process& process() {
  static auto& own = *new Process;
  return own;
}

void finalize_at_exit() {
  if (!is_usable()) return;
  wait_for_devices();
  if (!process().has_initialized) return end_lanes();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  faults::inject(Fault::Moment::exit, rank, "world");
  std::string absent;
  try {
    absent = wait_for_all_at_exit(rank);
  } catch (const std::exception& error) {  // of MPI, which no caller is left to catch
    absent = error.what();
  }
  if (!process().lacks_a_rank() && absent.empty() && stop_mpi_use()) {
    end_lanes();
    stop_watchers();
    process().latest_world.reset();
    const BlockingCall guard("MPI_Finalize", "all processes", process().timeout);
    MPI_Finalize();
    return;
  }
  if (absent.empty()) absent = "the communication of a collective is still under way";
  // std::fprintf of glibc 2.37 writes 128 bytes at a time, between which other ranks may write.
  const std::string text =
      fmt::format("tutti: rank {} is exiting and ends the job: {}\n", rank, absent);
  std::fputs(text.c_str(), stderr);
  std::this_thread::sleep_for(200ms);  // MPI_Abort drops what MPICH's launcher has yet to read
  const BlockingCall guard("MPI_Abort", "its launcher", 10s);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail<DistributedError>("{} failed on rank {}: {}", call, process().rank.load(), text);
}

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool allows_threads() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
}

void initialize(const GroupInfo& launch) {
  if (!is_usable())
    fail<DistributedError>(
        "from_environment: MPI has been finalised, or this process was forked from one that uses "
        "it; start the child with exec");
  Process& own = process();
  if (!own.mark) own.mark.emplace();
  own.rank = launch.rank;
  own.timeout = launch.timeout;
  if (is_initialized()) return;
  // MPI_Init reads these. What the user has set, by mpirun --mca or in the environment, wins.
  // "vader" became "sm" in Open MPI 5.
  const std::string eager = std::to_string(eager_bytes);
  for (const char* name : {"OMPI_MCA_btl_vader_eager_limit", "OMPI_MCA_btl_sm_eager_limit"})
    setenv(name, eager.c_str(), 0);
  int provided = 0;
  {
    const BlockingCall guard(
        "MPI_Init_thread", fmt::format("all {} processes", launch.size),
        std::max<std::chrono::milliseconds>(launch.timeout, least_start_timeout));
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
  // Open MPI 4.1 reports errors of MPI_Iallreduce to the handler of MPI_COMM_WORLD, which aborts.
  for (const MPI_Comm each : {MPI_COMM_WORLD, MPI_COMM_SELF})
    check(MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  own.has_initialized = true;
  std::atexit(finalize_at_exit);
}

void note_missing_rank() { process().rank_is_missing = true; }

bool is_usable() {
  const Process& own = process();
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  return is_finalized == 0 && !(own.mark && own.mark->is_of_parent());
}

void never_free(std::shared_ptr<void> memory) {
  Process& own = process();
  const std::lock_guard lock(own.kept_mutex);
  own.kept.push_back(std::move(memory));
}

void keep_until_exit(std::shared_ptr<World> world) {
  Process& own = process();
  std::erase_if(own.worlds, [](const auto& each) { return each.expired(); });
  own.worlds.push_back(world);
  own.latest_world = std::move(world);
  if (own.key != MPI_KEYVAL_INVALID) return;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, take_mpi_from_application, &own.key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, own.key, nullptr);
  flight_recorder_library() = describe_library();
}

}  // namespace tutti::distributed::mpi
