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
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace tutti::distributed {

class Lane;  // lane.h

/// Why a world has failed. From then on every call in all of its groups fails with this cause.
struct Failure {
  std::string at = {};    ///< The collective, as describe() names it; empty if there was none.
  std::string what = {};  ///< The cause.
  bool timeout = false;   ///< Whether a deadline has passed, which makes it a TimeoutError.
  int rank = -1;          ///< The rank of this world that has given up, where one has said so.
  /// Waits for the flight recorders' files, as throw_failure() does. World sets it.
  std::function<void()> wait_for_recorders = {};
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
  virtual int rank() const { return group().rank; }  ///< Of the group, whose call it is.
  virtual Deadline deadline() const = 0;
  /// Until this time it goes on after its deadline where the ranks that it waits for answer that
  /// they have issued this call: they may wait for others, and name those.
  virtual Clock::time_point patient_until() const { return deadline().at; }
  /// Finds out why the collective is not done. Does not wait for other ranks.
  virtual PendingState pending_state() const = 0;

 private:
  friend class World;
  // Returns whether it is time to ask missing ranks where they are, which then counts as done.
  bool take_turn_to_ask(Clock::time_point now);

  Clock::time_point next_question_ = {};
  std::size_t rounds_ = 0;
};

/// What the groups of one world share: the first failure, who has left, and the deadlines.
class World : public std::enable_shared_from_this<World> {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// A rank of the world asks this one for its latest calls and for one call of a group.
  struct StatusRequest {
    int rank = 0;
    std::uint64_t group_id = 0;  ///< 0 where no call is in question.
    std::int64_t sequence = 0;
    std::uint64_t hash = 0;  ///< Of the call's fingerprint on the rank that asks.
  };
  /// A rank of the world, which this one has asked, tells its latest calls.
  struct StatusReply {
    int rank = 0;
    LatestCalls latest_calls = {};
    bool has_departed = false;   ///< It will issue no more.
    bool is_blocked = false;     ///< It is in a call that ends its job if it waits too long there.
    std::uint64_t group_id = 0;  ///< As in the request.
    /// The number of its last call in the group, where it has destroyed that before the call of the
    /// request.
    std::optional<std::int64_t> left_after = {};
    /// Its call of that number in the group, where that differs from the one of the request.
    std::optional<Fingerprint> other_call = {};
  };
  /// A rank of the world tells this one that it has released a group.
  struct Release {
    int rank = 0;
    std::uint64_t group_id = 0;
  };
  /// A notice from another rank.
  using Notice = std::variant<Failure, StatusRequest, StatusReply, Release>;

  /// How failures, questions and answers reach ranks that have a World object of their own. Nobody
  /// announces a departure: at a normal exit each rank would tell each other one. World calls it
  /// under its lock, except for guard().
  class Transport {
   public:
    virtual ~Transport() = default;
    /// Tells all other ranks. Returns the failure that counts: where another rank was known to be
    /// first, that rank's. Must not throw.
    virtual Failure send_failure(const Failure& failure) = 0;
    /// Sends what this rank asks, answers or tells to a rank of the world, where receive() returns
    /// it. Must not throw.
    virtual void send(int /*rank*/, const Notice& /*notice*/) {}
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
    /// What runs at the process's exit and ends this world there; null where nothing has to.
    void (*at_exit)() = nullptr;
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
  bool give_up(PendingCollective& pending);
  bool give_up(PendingCollective& pending, Lock& lock);
  /// For a step that all ranks take together but that is no collective, such as creating a
  /// communicator: call this repeatedly while it is not done. Throws the failure of the world, and
  /// fails the world once the deadline has passed. `what` names the step.
  void check_step(const std::string& what, const Deadline& deadline, const GroupInfo& group);

  /// The thread that keeps deadlines while nobody waits.
  Watcher& watcher() { return watcher_; }

  // ---- lanes of devices

  using MakeLane = std::shared_ptr<Lane>(std::shared_ptr<World> world,
                                         std::shared_ptr<const GroupInfo> info, int device);
  /// Sets the device of each rank, by which its CUDA tensors travel, and what makes the lanes of
  /// groups. All ranks do so with the same devices, before their first call.
  void set_devices(std::vector<int> devices, MakeLane* make_lane);
  /// Sets why there are none, so that CUDA tensors are staged through the host.
  void set_why_staged(std::string why) { why_staged_ = std::move(why); }
  /// Returns the device of a rank of the world; -1 where CUDA tensors are staged.
  int device_of(int world_rank) const;
  const std::string& why_staged() const { return why_staged_; }
  /// Makes the lane of a rank in the group of `info`, and watches it until it has ended.
  std::shared_ptr<Lane> make_lane(const std::shared_ptr<const GroupInfo>& info, int device);
  /// Returns the lanes of all groups, of the ranks that share this object.
  std::vector<std::shared_ptr<Lane>> lanes() const;
  /// Waits until the devices have finished the calls of all lanes, or the world has failed.
  void wait_for_devices(std::chrono::milliseconds patience) const;
  /// Aborts all lanes, and waits until they have ended: their graphs may keep them.
  void end_lanes(std::chrono::milliseconds patience);

  /// Tells the rank `to` of the world that the rank `from`, which is this one, has released a
  /// group.
  void send_release(int from, int to, std::uint64_t group_id);
  /// Returns the ranks of the world that have told `rank`, which is this one, so.
  std::set<int> releases(int rank, std::uint64_t group_id) const;

  /// For a backend whose ranks share this object: its own state is guarded by the same lock, so
  /// that one wait sees its own changes, failures and departures.
  Lock lock() { return Lock(mutex_); }
  void wait(Lock& lock) { changed_.wait(lock); }
  void wait_until(Lock& lock, Clock::time_point time) { changed_.wait_until(lock, time); }
  void notify(const Lock&) { changed_.notify_all(); }

 private:
  // What is known of a rank that has been asked where it is or has departed.
  struct Peer {
    Clock::time_point asked_at = {};
    std::optional<LatestCalls> latest_calls = {};      // once the rank has answered
    std::optional<Clock::time_point> departed = {};    // since when that is known
    bool is_blocked = false;                           // it has answered so
    std::map<std::uint64_t, StatusReply> groups = {};  // what it has answered about each
  };
  void set_failure(Failure failure);
  void handle(Notice notice);
  void answer(const StatusRequest& question);
  void handle_reply(StatusReply reply);
  void ask(int world_rank, const PendingCollective* pending);
  void note_departure(int rank, LatestCalls latest_calls);
  bool can_ask() const { return options_.transport != nullptr; }  // ranks where they are
  void ask_who_has_departed(const PendingState& state, const PendingCollective& pending);
  bool may_have_failed(const PendingCollective& pending, Clock::time_point now) const;
  std::optional<Failure> verdict(const PendingCollective& pending, PendingState state,
                                 Clock::time_point stalled_at);
  void add_disagreement(PendingState& state, const PendingCollective& pending) const;
  std::optional<Fingerprint> other_call(int world_rank, const PendingCollective& pending) const;
  void add_departed(PendingState& state, const PendingCollective& pending,
                    Clock::time_point stalled_at) const;
  bool has_left(int world_rank, const PendingCollective& pending) const;
  void add_silent_hosts(PendingState& state, const PendingCollective& pending) const;
  bool spare_blocked_ranks(PendingState& state, const GroupInfo& group) const;
  bool ask_at_deadline(const PendingState& state, const PendingCollective& pending);
  // Both return null for what is not known.
  const Peer* find_peer(int world_rank) const;
  const StatusReply* find_answer(int world_rank, std::uint64_t group_id) const;
  std::optional<LatestCalls> known_calls(int world_rank) const;
  std::optional<LatestCalls> own_latest_calls(int world_rank) const;
  std::string all_latest_calls(std::span<const int> absent, const PendingState& state,
                               const GroupInfo& group) const;
  void check_watched();

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::atomic<bool> has_failed_ = false;
  std::map<int, Peer> peers_;           // by rank in the world
  std::atomic<bool> has_news_ = false;  // a rank has departed or is at another call
  std::map<int, std::shared_ptr<FlightRecorder>> recorders_;         // by rank in the world
  std::map<std::pair<int, std::uint64_t>, std::set<int>> releases_;  // by rank and group
  std::vector<int> devices_;  // by rank in the world; empty where CUDA tensors are staged
  MakeLane* make_lane_ = nullptr;
  std::string why_staged_;
  mutable std::mutex lanes_mutex_;
  std::vector<std::shared_ptr<Lane>> lanes_;

  // The last member: its thread ends before the transport goes.
  Watcher watcher_{options_.has_watcher ? [this] { check_watched(); } : std::function<void()>()};
};

}  // namespace tutti::distributed
