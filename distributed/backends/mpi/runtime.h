// The MPI library of this process: initialised by us only when nobody did, and then finalised at
// exit. Domain is what all groups of one world share: the first failure, and a channel on which
// ranks tell it to each other.
#pragma once

#include "../../backend.h"

#include <mpi.h>

#include <list>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace tutti::distributed::mpi {

/// Throws a DistributedError that says what `call` reported, unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

/// Initialises MPI where nobody has; how long that waits for processes that do not start is the
/// launcher's affair. At exit MPI is finalised. Finalising waits for every rank, without a
/// deadline: so where a rank was found missing, or does not come to its own exit within `timeout`
/// of ours, the job is ended by MPI_Abort instead, after a line on standard error that says for
/// whom this one waited (nobody is left to catch an exception).
void ensure_initialized(std::chrono::milliseconds timeout);

/// A rank was found missing: this process ends with MPI_Abort.
void note_somebody_missing();

/// MPI has been finalised, or belongs to the process that this one was forked from.
bool is_gone();
/// Held (shared) by threads of the library while they call MPI; finalising holds it alone and keeps
/// it.
std::shared_timed_mutex& in_use();
/// How many collectives the library's threads have been given and not done; finalising waits for
/// them.
std::atomic<int>& under_way();
/// Whether a second thread may call MPI.
bool threads_allowed();

/// Memory that MPI may still use after a failure: a message to a rank that never came cannot be
/// taken back.
void keep_for_ever(std::shared_ptr<void> memory);

/// A communicator, freed with its owner unless MPI is gone or a failure left messages in it.
class Communicator {
 public:
  Communicator() = default;
  /// Of the ranks `members` of `parent`, in this order. Collective among them.
  Communicator(MPI_Comm parent, const std::vector<int>& members, int tag);
  Communicator(Communicator&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~Communicator();
  MPI_Comm get() const { return comm_; }
  void abandon() { comm_ = MPI_COMM_NULL; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// A collective under way that somebody may or may not wait for.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Called now and then by the watcher's thread: moves on, and breaks the domain at the deadline.
  /// Never blocks, never throws; true when there is nothing left to look after.
  virtual bool look() noexcept = 0;

 private:
  friend class Domain;
  std::optional<std::list<std::shared_ptr<Watched>>::iterator> place_;
};

class Domain {
 public:
  explicit Domain(int size);
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  /// Breaks all groups of this world; the first failure is told to every process.
  void fail(Failure why);
  /// The first failure that this process knows of; looks whether another one has sent it.
  std::optional<Failure> failure();

  /// Tells the others that this process is at its exit.
  void leave();
  /// Which of these ranks of `comm` have told so, some time ago: what they sent before has arrived
  /// by now.
  std::vector<int> left_of(MPI_Comm comm, const std::vector<int>& ranks);
  bool has_somebody_left() const { return somebody_left_; }

  /// Looks after a collective until it is unwatched or done (where MPI allows a second thread).
  void watch(const std::shared_ptr<Watched>& work);
  void unwatch(Watched& work);

 private:
  enum class Kind : std::int32_t { failure, leaving };
  struct Notice {
    Kind kind;
    std::int32_t timeout;
    char at[300];
    char what[1200];
  };
  void break_with(Failure why);
  void listen();
  void tell_everybody(std::shared_ptr<Notice> notice);
  void look();

  std::mutex mutex_;
  Communicator channel_;
  int size_;
  std::optional<Failure> failure_;
  std::shared_ptr<Notice> incoming_ = std::make_shared<Notice>();
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::map<int, std::chrono::steady_clock::time_point> left_;
  std::atomic<bool> somebody_left_{false};

  std::mutex watching_;
  std::list<std::shared_ptr<Watched>> watched_;
  std::optional<Watcher> watcher_;  // started by the first collective
};

/// A communicator of a group, shared by the group and all that is under way on it: whichever goes
/// last frees it. Not where the world has failed: what a failure left behind still arrives here
/// some day.
class GroupCommunicator {
 public:
  /// Collective among `members`; see Communicator.
  GroupCommunicator(std::shared_ptr<Domain> domain, MPI_Comm parent,
                    const std::vector<int>& members, int tag)
      : domain_(std::move(domain)), comm_(parent, members, tag) {}
  ~GroupCommunicator();
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;
  MPI_Comm get() const { return comm_.get(); }
  Domain& domain() const { return *domain_; }

 private:
  std::shared_ptr<Domain> domain_;
  Communicator comm_;
};

/// The domain of from_environment()'s latest world, kept until MPI is finalised.
void keep_world(std::shared_ptr<Domain> domain);

/// One pause in a wait: the `spins`-th.
void pause(std::int64_t spins, bool patient);

/// Breaks the domain, and returns true, where a rank that is missing has left or the deadline has
/// passed. `missing` gives the ranks of `comm` that have not done their part; `why` makes the text
/// for those ranks, given whether they have left.
template <class Missing, class Why>
bool give_up(Domain& domain, MPI_Comm comm, const Collective& call, const Backend::Place& place,
             std::chrono::steady_clock::time_point deadline, const Missing& missing,
             const Why& why) {
  std::vector<int> left;
  if (domain.has_somebody_left()) left = domain.left_of(comm, missing());
  if (!left.empty()) domain.fail({.at = describe(call, place), .what = why(left, true)});
  else if (std::chrono::steady_clock::now() >= deadline)
    domain.fail({.at = describe(call, place), .what = why(missing(), false), .timeout = true});
  else return false;
  return true;
}

/// Polls `done` until it is true. Gives the core away between two looks, and after a while sleeps:
/// several ranks and their communication threads may share few cores. Throws the failure of the
/// domain as seen from `call`; see give_up.
template <class Done, class Missing, class Why>
void wait_until(Domain& domain, MPI_Comm comm, const Collective& call, const Backend::Place& place,
                bool patient, std::chrono::steady_clock::time_point deadline, const Done& done,
                const Missing& missing, const Why& why) {
  for (std::int64_t spins = 0; !done(); ++spins) {
    pause(spins, patient);
    if (spins % 64 != 63 && !patient) continue;
    if (const auto failure = domain.failure()) raise(*failure, call, place);
    give_up(domain, comm, call, place, deadline, missing, why);
  }
}

}  // namespace tutti::distributed::mpi
