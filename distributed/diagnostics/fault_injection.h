// Faults on purpose: a rank that is late, silent, stopped, killed or throws at a chosen collective,
// to see what becomes of the others. Armed by InjectFault in a program, or in any real process by
// the environment variable TUTTI_FAULT. Where nothing is armed, a collective pays for looking at
// one flag.
#pragma once

#include "../process_group.h"

#include <atomic>

namespace tutti::distributed {

struct Fault {
  enum class Action {
    delay,  ///< comes `delay` late
    drop,   ///< its call never reaches the others; waiting for it fails when they do
    raise,  ///< throws an InjectedError
    exit,   ///< std::exit(0), or std::_Exit(0) where `when` is exit: the whole process, as the next
            ///< two
    stop,   ///< SIGSTOP
    kill,   ///< SIGKILL
  };
  enum class Moment {
    start,  ///< as the process enters from_environment(), MPI being up
    call,   ///< before the others can see the call
    data,   ///< all have come, its data is about to move: on the communication thread, for what has
            ///< one
    exit,   ///< as the process finalises MPI
  };
  Action action = Action::raise;
  int rank = 0;  ///< in `group`
  std::int64_t collective =
      1;  ///< the how-manieth of that group, from 1; start and exit do not ask
  std::string group = "world";  ///< or "world/normalization", "world/split0", ...
  Moment when = Moment::call;
  std::chrono::milliseconds delay{1000};
};

/// What Action::raise throws.
class InjectedError : public Error {
 public:
  using Error::Error;
};

/// The faults of a text such as TUTTI_FAULT: "rank=1,collective=8,action=kill", several with ';'.
/// Keys: action (delay, drop, raise, exit, stop, kill), rank, collective, group, when (start, call,
/// data, exit), delay (in ms). What is absent has the default above; rank and action are needed,
/// collective too unless `when` is start or exit. ValueError.
std::vector<Fault> parse_faults(const std::string& text);

/// While one lives, its fault is armed in this process, for ranks that are threads and for real
/// ones.
class InjectFault {
 public:
  explicit InjectFault(Fault fault);
  ~InjectFault();
  InjectFault(const InjectFault&) = delete;
  InjectFault& operator=(const InjectFault&) = delete;

 private:
  std::uint64_t id_;
};

namespace faults {

extern std::atomic<int> armed;
bool strike(Fault::Moment when, int rank, const std::string& group, std::int64_t collective);

/// Arms what TUTTI_FAULT says, once. ValueError.
void read_environment();
/// For the backends: carries out what is armed for this place; true where the call is to be
/// dropped.
inline bool at(Fault::Moment when, int rank, const std::string& group,
               std::int64_t collective = 0) {
  return armed.load(std::memory_order_relaxed) > 0 && strike(when, rank, group, collective);
}

}  // namespace faults

}  // namespace tutti::distributed
