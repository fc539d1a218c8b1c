// The scheduler of the simulator: threads of many ranks in one process, of which one runs at a
// time, in virtual time. A thread keeps its turn until it waits; when all wait, time jumps to the
// next event. The linker puts the functions at the end of scheduler.cpp in the place of the clock,
// sleeps, mutexes, condition variables and threads of the library (--wrap), which changes no line
// of it. Threads that run() has not started use the real ones.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tutti::simulator {

/// Nanoseconds of virtual time.
using Time = std::int64_t;
inline constexpr Time never = std::numeric_limits<Time>::max();
inline constexpr Time microsecond = 1000, millisecond = 1000 * microsecond,
                      second = 1000 * millisecond;

/// Runs `main(rank)` on a thread for each of `ranks` until every rank has ended, or no rank that is
/// left can go on before `limit`. `seed` chooses which thread is next where several can run.
void run(int ranks, std::uint64_t seed, Time limit, const std::function<void(int)>& main);

Time now();
/// The numbers that the seed draws, for faults too.
std::mt19937_64& random();
/// Returns the rank of the calling thread, whose threads inherit it; -1 where it has none.
int this_rank();

/// Calls `what` at a time, on whatever thread has its turn then.
void at(Time when, std::function<void()> what);
/// Waits until wake() is called for this address, or until a time. Returns whether it was woken.
bool wait(const void* address, Time until, const char* what);
void wake(const void* address, bool all = true);
/// Waits as a thread does that polls, until something of its rank changes (wake_pollers()), or 100
/// us. A thread that has polled long in vain waits up to 50 ms, so that idle ranks cost little.
void pause_poll();
void wake_pollers(int rank);
/// Names the call of MPI in which this thread polls next, and lets its next pause be short.
void begin_call(const char* name);

/// Ends a rank, or lets none of its threads run until it goes on.
void freeze(int rank, Time until);
bool is_frozen(int rank);
/// Ends the whole job, as MPI_Abort and a launcher do. Does not return.
[[noreturn]] void end_job();
bool was_ended();
/// Whether the rank's function has returned.
bool has_ended(int rank);
/// Says where every thread of the ranks that have not ended waits, and since when.
std::string describe_waits();

}  // namespace tutti::simulator
