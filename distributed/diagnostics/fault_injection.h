// Fault injection: makes a rank late, silent, stopped, killed or throw at a chosen collective, to
// see what the other ranks do. A fault is armed by an InjectFault object in a program, or in any
// process by the environment variable TUTTI_FAULT. While no fault is armed, a collective only reads
// one atomic counter.
#pragma once

#include "../../core/error.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace tutti::distributed {

/// What goes wrong, on which rank, and when.
struct Fault {
  enum class Action {
    delay,  ///< The rank sleeps for `delay`.
    drop,   ///< The call never reaches the other ranks; waiting for it fails when theirs do.
    raise,  ///< The rank throws an InjectedError.
    exit,   ///< The process calls std::exit(0), or std::_Exit(0) where `when` is exit.
    stop,   ///< The process gets SIGSTOP.
    kill,   ///< The process gets SIGKILL.
  };
  enum class Moment {
    start,  ///< When the process enters from_environment(); MPI is initialised by then.
    call,   ///< When the rank calls the collective, before the other ranks can see the call.
    data,   ///< When all ranks have called the collective and its data is about to move, on the
            ///< communication thread. Only collectives that such a thread carries out have it.
    exit,   ///< When the process finalises MPI.
  };
  Action action = Action::raise;
  int rank = 0;  ///< The rank in `group`.
  /// The number of the collective in its group, counted from 1. The moments start and exit ignore
  /// it.
  std::int64_t collective = 1;
  std::string group = "world";  ///< Or "world/normalization", "world/split0", ...
  Moment when = Moment::call;
  std::chrono::milliseconds delay{1000};
};

/// The error that Action::raise throws.
class InjectedError : public Error {
 public:
  using Error::Error;
};

/// Parses faults from a text such as "rank=1,collective=8,action=kill", the format of TUTTI_FAULT;
/// a ';' separates several faults. The keys are action (delay, drop, raise, exit, stop or kill),
/// rank, collective, group, when (start, call, data or exit) and delay (in milliseconds). `rank`
/// and `action` are required, `collective` too unless `when` is start or exit; a key that is absent
/// has the default of Fault. Throws a ValueError for anything else.
std::vector<Fault> parse_faults(const std::string& text);

/// Arms a fault in this process for as long as the object lives, for ranks that are threads and for
/// ranks that are processes.
class InjectFault {
 public:
  [[nodiscard]] explicit InjectFault(Fault fault);
  ~InjectFault();
  InjectFault(const InjectFault&) = delete;
  InjectFault& operator=(const InjectFault&) = delete;

 private:
  std::list<Fault>::iterator armed_;
};

/// The functions that process groups and their backends call.
namespace faults {

extern std::atomic<int> armed;  ///< The number of armed faults.

/// Arms the faults of TUTTI_FAULT, once in a process. Throws a ValueError.
void read_environment();

/// Carries out the faults that are armed for this moment, rank, group and collective. Returns true
/// where the call must be dropped.
bool carry_out(Fault::Moment when, int rank, const std::string& group, std::int64_t collective);

/// Does what carry_out() does, at the cost of one atomic load where no fault is armed.
inline bool inject(Fault::Moment when, int rank, const std::string& group,
                   std::int64_t collective = 0) {
  return armed.load(std::memory_order_relaxed) > 0 && carry_out(when, rank, group, collective);
}

}  // namespace faults

}  // namespace tutti::distributed
