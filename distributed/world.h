// World: the ranks that were started together, as one rank sees them. It owns what is the same for
// every backend: the first failure, which ranks have departed and the deadlines of collectives. It
// moves no data; backends do, and give the world a Transport that carries failures and departures
// to the other ranks. absence.h has the texts that name absent ranks, watcher.h the thread that
// keeps deadlines while nobody waits.
#pragma once

#include "absence.h"
#include "flight_recorder_file.h"
#include "watcher.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

namespace tutti::distributed {

/// Why a world has failed. From then on every call in all of its groups fails with this cause.
struct Failure {
  std::string at = {};    ///< The collective, as describe() names it; empty if there was none.
  std::string what = {};  ///< The cause.
  bool timeout = false;   ///< Whether a deadline has passed, which makes it a TimeoutError.
  RecorderWrite recorders = {};  ///< World sets it; throw_failure() waits for it.
};

/// Throws `failure` as the rank of `group` sees it that is in `call`: a TimeoutError or a
/// DistributedError.
[[noreturn]] void throw_failure(const Failure& failure, const Collective& call,
                                const GroupInfo& group);
/// The same with a text of the caller's.
[[noreturn]] void throw_failure(const Failure& failure, const std::string& text,
                                CollectiveInfo info);

/// A point in time, and the timeout that led to it, which error texts name.
struct Deadline {
  Clock::time_point at = (Clock::time_point::max)();
  std::chrono::milliseconds timeout{0};

  static Deadline after(std::chrono::milliseconds timeout, Clock::time_point start = Clock::now()) {
    return {deadline_after(timeout, start), timeout};
  }
};

/// A collective that is not done, as World::give_up() asks about it.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  virtual const Collective& call() const = 0;
  virtual const GroupInfo& group() const = 0;
  virtual Deadline deadline() const = 0;
  /// Until this time it goes on after its deadline where the ranks that it waits for answer that
  /// they have issued this call: they may wait for others, and name those.
  virtual Clock::time_point patient_until() const { return deadline().at; }
  /// From this time on pending_state() is asked although neither the deadline has passed nor a rank
  /// has departed.
  virtual Clock::time_point inspect_from() const { return (Clock::time_point::max)(); }
  /// Finds out why the collective is not done. Does not wait for other ranks.
  virtual PendingState pending_state() const = 0;

 private:
  friend class World;
  // When and how often World asks some of the missing ranks whether they have departed.
  mutable Clock::time_point next_question_ = {};
  mutable std::size_t rounds_ = 0;
};

/// What the groups of one world share: the first failure, who has left, and the deadlines.
class World {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// A rank of the world asks this one for its latest calls.
  struct StatusRequest {
    int rank = 0;
  };
  /// A rank of the world, which this one has asked, tells its latest calls.
  struct StatusReply {
    int rank = 0;
    LatestCalls latest_calls = {};
    bool has_departed = false;  ///< It will issue no more.
    bool is_blocked = false;    ///< It is in a call that ends its job if it waits too long there.
  };
  /// A notice from another rank.
  using Notice = std::variant<Failure, StatusRequest, StatusReply>;

  /// How failures, questions and answers reach ranks that have a World object of their own. Nobody
  /// announces a departure: at a normal exit each rank would tell each other one. World calls it
  /// under its lock, except for guard().
  class Transport {
   public:
    virtual ~Transport() = default;
    /// Tells all other ranks. Returns the failure that counts: where another rank was known to be
    /// first, that rank's. Must not throw.
    virtual Failure send_failure(const Failure& failure) = 0;
    /// Returns whether ranks can be asked where they are.
    virtual bool can_ask() const { return false; }
    /// Asks a rank of the world for its latest calls, which receive() returns once it has answered.
    /// Must not throw.
    virtual void send_status_request(int /*rank*/) {}
    /// Answers the question of a rank of the world; `reply` is about this rank. Must not throw.
    virtual void send_status_reply(int /*rank*/, const StatusReply& /*reply*/) {}
    /// Returns what another rank has sent, if anything has arrived.
    virtual std::optional<Notice> receive() = 0;
    /// Calls `check` on the watcher thread, or does not where that thread must not use the
    /// transport now.
    virtual void guard(const std::function<void()>& check) { check(); }
  };

  struct Options {
    /// Null where all ranks are threads that share this World object.
    std::unique_ptr<Transport> transport = {};
    /// The rank in the world that this object belongs to, where ranks have their own.
    int rank = 0;
    /// What a departure means, for one rank and for several: "its process is exiting".
    const char* departed_one = "it has departed";
    const char* departed_many = "they have departed";
    /// How long after the news of a departure all messages have arrived that were sent before it.
    std::chrono::milliseconds departure_delay{0};
    /// False where a second thread must not use the transport; then only waits keep deadlines.
    bool has_watcher = true;
  };

  explicit World(Options options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Breaks all groups of this world on every rank. Only the first failure counts.
  void fail(const Failure& failure);
  void fail(const Failure& failure, Lock& lock);

  /// Returns the first failure, if this rank knows of one. Costs one load where there is none.
  std::optional<Failure> failure() const;
  std::optional<Failure> failure(const Lock&) const { return failure_; }
  /// Receives what the other ranks have sent, unless another thread does, then returns failure().
  std::optional<Failure> poll();
  /// Throws failure(), if there is one, as the rank of `group` sees it that is in `call`.
  void throw_if_failed(const Collective& call, const GroupInfo& group) const;
  void throw_if_failed(const Collective& call, const GroupInfo& group, Lock& lock) const;

  /// Notes that `rank` of the world, which is this one, will issue no more collectives. Ranks that
  /// have a World object of their own learn it when they have waited for it and ask.
  void depart(int rank);
  /// Asks `ranks` of the world for their latest calls and returns whether all of them answer within
  /// two seconds: then their processes live.
  bool all_answer(std::span<const int> ranks);

  /// Returns the record of the calls of this rank of `group`, which the ranks that share this
  /// object have one each of.
  std::shared_ptr<FlightRecorder> recorder(const GroupInfo& group);

  /// Fails the world where `pending` will never be done: its deadline has passed, a missing rank
  /// has departed, or the ranks disagree. Returns whether the world has failed through it. At the
  /// deadline it first asks the missing ranks for their latest calls where only they know them, and
  /// waits for the answers up to two seconds; the caller must go on calling poll().
  bool give_up(const PendingCollective& pending);
  bool give_up(const PendingCollective& pending, Lock& lock);
  /// For a step that all ranks take together but that is no collective, such as creating a
  /// communicator: call this repeatedly while it is not done. Throws the failure of the world, and
  /// fails the world once the deadline has passed. `what` names the step.
  void check_step(const std::string& what, const Deadline& deadline, const GroupInfo& group);

  /// The thread that keeps deadlines while nobody waits.
  Watcher& watcher() { return watcher_; }

  /// For a backend whose ranks share this object: its own state is guarded by the same lock, so
  /// that one wait sees its own changes, failures and departures.
  Lock lock() { return Lock(mutex_); }
  void wait(Lock& lock) { changed_.wait(lock); }
  void wait_until(Lock& lock, Clock::time_point time) { changed_.wait_until(lock, time); }
  void notify(const Lock&) { changed_.notify_all(); }

 private:
  // What is known of a rank that has been asked for its latest calls or has departed.
  struct Peer {
    Clock::time_point asked_at = {};
    std::optional<LatestCalls> latest_calls = {};    // once the rank has answered
    std::optional<Clock::time_point> departed = {};  // since when that is known
    bool is_blocked = false;                         // it has answered so
  };
  void set_failure(Failure failure);
  void handle(Notice notice);
  void ask(int rank, Clock::time_point now);
  void note_departure(int rank, LatestCalls latest_calls);
  bool can_ask() const { return options_.transport && options_.transport->can_ask(); }
  bool is_time_to_ask(const PendingCollective& pending, Clock::time_point now) const;
  void ask_who_has_departed(const PendingState& state, const PendingCollective& pending);
  bool may_have_failed(const PendingCollective& pending, Clock::time_point now) const;
  std::optional<Failure> verdict(const PendingCollective& pending, PendingState state,
                                 Clock::time_point stalled_at);
  void add_departed(PendingState& state, const PendingCollective& pending,
                    Clock::time_point stalled_at) const;
  void add_silent_hosts(PendingState& state, const PendingCollective& pending) const;
  bool only_blocked_are_missing(PendingState& state, const GroupInfo& group) const;
  bool has_asked(const PendingState& state, const PendingCollective& pending);
  std::optional<std::string> latest_calls(int rank, const PendingState& state,
                                          const GroupInfo& group) const;
  std::optional<LatestCalls> own_latest_calls(int world_rank) const;
  std::string all_latest_calls(std::span<const int> absent, const PendingState& state,
                               const GroupInfo& group) const;
  void check_watched();

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::atomic<bool> has_failed_ = false;
  std::map<int, Peer> peers_;  // by rank in the world
  std::atomic<bool> has_departures_ = false;
  std::map<int, std::shared_ptr<FlightRecorder>> recorders_;  // by rank in the world

  // The last member: its thread ends before the transport goes.
  Watcher watcher_{options_.has_watcher ? [this] { check_watched(); } : std::function<void()>()};
};

}  // namespace tutti::distributed
