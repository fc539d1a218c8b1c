// FlightRecorder: what one rank has called: its last collectives in all of its groups, with their
// times, and the latest one of each group, which tells where the rank is. It is always on;
// flight_recorder_file.h writes it where the world of the rank fails. It holds no tensors and knows
// nothing of waits and failures.
#pragma once

#include "collective.h"

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace tutti::distributed {

/// The times of a call that is done, in ticks (core/ticks.h).
struct CallTimes {
  std::int64_t issued = 0, done = 0;
  std::int64_t waited = 0;  ///< How long the caller was blocked in Work::wait().
};

class FlightRecorder;

/// A call on record, for the Work that waits for it.
struct RecordedCall {
  std::shared_ptr<FlightRecorder> recorder = {};
  std::int64_t number = 0;  ///< Counted from 1 over all groups of the rank.
  std::int64_t issued = 0;
  std::string title = {};  ///< In the trace, with these details; empty where nothing is traced.
  std::string details = {};
};

/// Where a rank is in its groups, as it tells other ranks.
struct LatestCalls {
  /// The most groups that `sequences` tells. Older calls are left out.
  static constexpr std::size_t most = 15;

  /// "A, B and C", the latest first, for at most six calls. A rank that waits is in the first,
  /// unless it has issued calls of other groups since.
  std::string text = "no call";
  /// GroupInfo::id and the number of the latest call, 0 where there is none yet. The latest call
  /// comes first.
  std::vector<std::pair<std::uint64_t, std::int64_t>> sequences = {};

  /// Returns the number of the latest call in a group; nothing where the list does not tell it.
  std::optional<std::int64_t> sequence_of(std::uint64_t group_id) const;
  /// Returns whether the rank may be in groups that the list does not tell.
  bool is_full() const { return sequences.size() == most; }
};

/// The record of one rank's calls.
class FlightRecorder {
 public:
  static constexpr std::size_t capacity = 200;

  /// A group of this rank, as long as its owner keeps it. Groups of one name and the same ranks
  /// that are made one after the other are told apart by a number, which is the same on all of
  /// their ranks.
  struct Group {
    std::size_t index = 0;  ///< In Contents::groups.
    std::int64_t number = 0;
    std::uint64_t id = 0;  ///< What Backend puts into GroupInfo::id.
    std::string name = {};
    // What follows is guarded by the recorder.
    Fingerprint latest = {};  ///< The latest call; its sequence is 0 where there is none yet.
    std::int64_t stamp = 0;   ///< Its number among the calls of all groups of its rank.
  };
  /// What the ring holds of a call. Times that are not known are 0.
  struct Entry {
    Fingerprint call;
    std::size_t group = 0;
    std::int64_t group_number = 0;
    CallTimes times = {};
  };
  /// The groups of one name and the same ranks.
  struct GroupName {
    std::string name;
    std::vector<int> world_ranks;
    std::int64_t count = 0;  ///< How many groups of this name and these ranks have been made.
  };
  /// A copy of what the recorder writes to its file.
  struct Contents {
    std::vector<GroupName> groups;
    std::int64_t calls = 0;      ///< All calls so far.
    std::vector<Entry> entries;  ///< The last of them, the oldest first.
  };

  /// `backend` is that of the rank's groups.
  explicit FlightRecorder(int world_rank = 0, std::string backend = {})
      : world_rank_(world_rank), backend_(std::move(backend)) {}

  int world_rank() const { return world_rank_; }
  const std::string& backend() const { return backend_; }
  /// Adds a group that the rank has made. The rank makes its groups in the same order as the
  /// others. The latest calls of groups that were destroyed are kept until now, so that a rank that
  /// has departed is still described.
  std::shared_ptr<Group> add_group(const std::string& name, const std::vector<int>& world_ranks);
  /// Records a call that is being issued, which gets the next number. Allocates nothing and waits
  /// for no other rank. The owner of the recorder sets RecordedCall::recorder.
  RecordedCall record(Group& group, const Fingerprint& call);
  /// Notes that the caller waited for a call from `began` to now, and that the call was done so
  /// long `before` now. Only the first note counts. Returns its times.
  CallTimes finish(const RecordedCall& call, std::int64_t began,
                   std::chrono::nanoseconds before = {});
  Contents contents() const;
  LatestCalls latest_calls() const;
  /// Returns a call of a group by its number, where the ring still has it.
  std::optional<Fingerprint> find(std::uint64_t group_id, std::int64_t sequence) const;
  /// Returns the number of the rank's last call in a group that it has destroyed, as one of the
  /// last `capacity`; else nothing.
  std::optional<std::int64_t> left_after(std::uint64_t group_id) const;

 private:
  const int world_rank_;
  const std::string backend_;
  mutable std::mutex mutex_;  // another thread may read the contents
  std::vector<GroupName> names_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::deque<std::pair<std::uint64_t, std::int64_t>> left_;  // ids and last calls of former groups
  std::array<Entry, capacity> ring_;
  std::int64_t calls_ = 0;
};

/// Returns seconds for a number of ticks.
double ticks_to_seconds(std::int64_t ticks);
/// Returns the time of the steady clock for a reading of the ticks.
std::chrono::steady_clock::time_point time_of_ticks(std::int64_t ticks);

}  // namespace tutti::distributed
