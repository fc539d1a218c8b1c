// Domain: what the groups of one world share on one rank: the store, the first failure, and the
// watcher. The watcher is a thread that looks after what nobody waits for on the host: whether
// collectives come to their end in time, what NCCL and the other ranks have to say, and when a
// communicator that is no longer used may go.
//
// The ranks' agreement on a collective is not checked in advance here: that would cost a second
// collective. Each rank writes the fingerprints of what it has under way to the store, and a rank
// that waits for more than a second compares.
#pragma once

#include "../../../core/cuda/stream.h"
#include "../../launch/rendezvous/store.h"
#include "communicator.h"

#include <condition_variable>
#include <deque>
#include <optional>

namespace tutti::distributed::nccl {

using Clock = std::chrono::steady_clock;

/// A collective that this rank has issued and the device has not finished. Keeps its tensors alive.
struct Pending {
  Collective call;
  Fingerprint print;
  cuda::Event ready, done;  ///< its inputs are there; it has come to its end
  bool launched = false;    ///< `done` is recorded
  std::optional<Clock::time_point> since =
      {};  ///< when nothing was left to wait for but the other ranks
};

/// What the watcher knows of a group: its communicator, stream and calls.
struct Channel {
  Channel(std::string channel_key, Backend::Place channel_place, std::vector<int> ranks,
          cuda::Stream own)
      : key(std::move(channel_key)),
        place(std::move(channel_place)),
        world_ranks(std::move(ranks)),
        stream(std::move(own)) {}

  const std::string key;  ///< the same on every member, of no other group
  const Backend::Place place;
  const std::vector<int> world_ranks;  ///< of the members
  const cuda::Stream stream;           ///< where its collectives run
  Communicator communicator{stream.device()};

  std::mutex mutex;  ///< guards what follows
  std::deque<std::shared_ptr<Pending>> pending;
  std::int64_t issued = 0;
  int recorded = 0;      ///< collectives that graphs hold
  bool retired = false;  ///< its group is gone

  // Of the watcher alone.
  std::optional<Clock::time_point> error_since = {};
  cuda::Event last = cuda::Event();  ///< after all that its stream will ever do
  bool announced = false;
};

class Domain {
 public:
  Domain(std::shared_ptr<rendezvous::Store> store, int device);
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  int device() const { return device_; }
  const rendezvous::Member& member() const { return store_->member(); }
  void add(std::shared_ptr<Channel> channel);
  /// Its communicator goes when all members have retired it, and no graph holds it: until then they
  /// may be receiving.
  void retire(Channel& channel);

  /// Breaks all groups of this world on every rank; the first of all ranks decides the cause. The
  /// watcher aborts.
  void fail(const Failure& why);
  std::optional<Failure> failure() const;
  /// Throws the failure, if there is one, as seen from `call`.
  void check(const Collective& call, const Backend::Place& place) const;
  /// A poll for what has a deadline of its own: setting up `what`.
  Poll until(Clock::time_point deadline, const std::string& what, const Backend::Place& place);

  /// Waits, not for long, until the other ranks have retired their channels too and no graph holds
  /// them; ends the watcher.
  void close();

 private:
  void watch();
  void look();
  void abort_all();
  void look_at(Channel& channel);
  void bury(Channel& channel);
  void drop(Channel& channel);
  void publish();
  std::string explain(const Channel& channel, const Pending& pending, bool late);
  void note(const Failure& why);

  const std::shared_ptr<rendezvous::Store> store_;
  const int device_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_ = false;  // the same, without the lock
  std::int64_t looks_ = 0;            // of the watcher alone, as is what it has published
  std::string published_;
  const std::uint64_t process_ = process_generation();
  std::optional<Watcher> watcher_;
};

/// Closes it at the latest when the program exits: later CUDA may be gone.
void close_at_exit(const std::shared_ptr<Domain>& domain);

}  // namespace tutti::distributed::nccl
