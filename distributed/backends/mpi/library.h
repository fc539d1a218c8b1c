// The MPI library of this process: initialises MPI where nobody has, finalises it when the process
// exits, and says which threads may call it at the moment. The only messages that it sends itself
// are those of the TimedBarrier before MPI is finalised.
#pragma once

#include "mpi.h"

#include <mpi.h>

#include <optional>
#include <shared_mutex>

namespace tutti::distributed::mpi {

/// What the backend keeps for its process, which is one rank.
struct Process {
  std::atomic<int> rank{0};  ///< For messages: what the launcher's variables say.
  /// Of calls that block in MPI, and of the exit.
  std::atomic<std::chrono::milliseconds> timeout{};
  std::optional<ProcessMark> mark = {};      ///< Of the process that uses MPI.
  std::atomic<bool> rank_is_missing{false};  ///< A collective has timed out.
  bool start_timed_out = false;              ///< The latest barrier at the start has.
  int barriers_passed = 0;                   ///< Of TimedBarrier.
  bool barrier_has_failed = false;           ///< Of the next such barrier, an earlier try has.
  std::string failed_start = {};  ///< Why the latest barrier at the start failed: " because ...".
  std::atomic<int> blocking_calls{0};  ///< That threads of this process are in (watchdog.h).
  /// The library's own threads hold this mutex shared while they call MPI. Finalising MPI locks it
  /// exclusively and never unlocks it.
  std::shared_timed_mutex usage = {};
  bool is_taken = false;  ///< `usage` is locked until the end.
  /// How many collectives the library's own threads have yet to finish; finalising waits for them.
  std::atomic<int> unfinished_collectives{0};
  bool has_initialized = false;  ///< MPI, which the application has not: the exit finalises it.
  std::shared_ptr<World> latest_world = {};
  std::vector<std::weak_ptr<World>> worlds = {};  ///< With earlier ones, whose lanes may live on.
  int key = MPI_KEYVAL_INVALID;  ///< Of the attribute that is deleted when MPI is finalised.
  std::mutex kept_mutex = {};
  std::vector<std::shared_ptr<void>> kept = {};  ///< What never_free() keeps.

  bool lacks_a_rank() const { return rank_is_missing || start_timed_out; }
};

/// Returns the one of this process. It is never destroyed, because threads may outlive static
/// objects. The simulator of tests/simulator, where ranks are threads, replaces this function.
Process& process();

/// Throws a DistributedError that says what `call` reported on this rank, unless `code` is
/// MPI_SUCCESS.
void check(int code, const char* call);

/// Initialises MPI where nobody has, and waits `launch.timeout` for all processes to do so, but at
/// least `least_start_timeout`. Then MPI is finalised when the process exits. MPI_Finalize waits
/// for every rank without a deadline. So where a rank was found missing, or does not exit within
/// the timeout of this one, MPI_Abort ends the job instead, after a line on standard error that
/// names the rank: no caller is left that could catch an exception.
void initialize(const GroupInfo& launch);
/// MPI_Init loads libraries and meets processes that still start, which takes seconds on a busy
/// machine.
inline constexpr std::chrono::seconds least_start_timeout{10};

/// Meets the other processes, and finalises MPI. Does nothing once that has been done, and where
/// the application has initialised MPI it only ends the lanes of devices.
void finalize_at_exit();

/// Records that a collective found a rank missing, so that this process ends with MPI_Abort.
void note_missing_rank();

/// Returns false once MPI has been finalised, and in the child of a fork.
bool is_usable();

/// Keeps memory that MPI may still use after a failure: a message to a rank that never arrives
/// cannot be cancelled.
void never_free(std::shared_ptr<void> memory);

/// Keeps the world of the latest from_environment() until MPI is finalised, when it must be gone.
void keep_until_exit(std::shared_ptr<World> world);

}  // namespace tutti::distributed::mpi
