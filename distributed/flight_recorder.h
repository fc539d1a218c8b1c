// FlightRecorder: what one rank has called: its last collectives in all of its groups, with their
// times, and the latest one of each group, which tells where the rank is. It is always on;
// flight_recorder_file.h writes it where the world of the rank fails. It holds no tensors and knows
// nothing of waits and failures.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::distributed {

enum class Operation : std::uint8_t;

/// One call as a rank keeps it on record: plain bytes, which backends may send.
struct CallRecord {
  std::int64_t sequence = 0;  ///< Its number in its group; 0 stands for no call yet.
  std::int64_t bytes = 0;
  Operation operation = {};
  char name[103] = {};     ///< The beginning of the name.
  std::int64_t stamp = 0;  ///< Its number among the calls of all groups of its rank.
};

/// The latest call of a rank in the group of this name; its sequence is 0 where there is none yet.
struct LatestCall {
  CallRecord record;
  std::string group;
  std::uint64_t group_id = 0;  ///< GroupInfo::id.
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
    std::uint64_t id = 0;    ///< What Backend puts into GroupInfo::id.
    CallRecord latest = {};  ///< Guarded by the recorder.
  };
  /// What the ring holds of a call. Times are ticks (core/ticks.h), 0 where they are not known.
  struct Entry {
    CallRecord call;  ///< Its name is followed by its step (CallOptions::step).
    std::size_t group = 0;
    std::int64_t group_number = 0;
    std::int64_t issued = 0, done = 0;
    std::int64_t waited = 0;  ///< How long the caller was blocked in Work::wait().
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
  /// Records a call that is being issued. `step` is CallOptions::step. Allocates nothing and waits
  /// for no other rank. Returns its number, counted from 1, which is its stamp.
  std::int64_t record(Group& group, const CallRecord& call, std::string_view step = {});
  /// Notes that the caller waited for call `number` from `began` to now, and that the call was done
  /// so long `before` now. Only the first note counts.
  void finish(std::int64_t number, std::int64_t began, std::chrono::nanoseconds before = {});
  Contents contents() const;
  /// Returns the latest call of every group, in no order.
  std::vector<LatestCall> latest_calls() const;

 private:
  const int world_rank_;
  const std::string backend_;
  mutable std::mutex mutex_;  // another thread may read the contents
  std::vector<GroupName> names_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::array<Entry, capacity> ring_;
  std::int64_t calls_ = 0;
};

/// A call on record, for the Work that waits for it.
struct RecordedCall {
  std::shared_ptr<FlightRecorder> recorder = {};
  std::int64_t number = 0;
};

/// Returns seconds for a number of ticks.
double ticks_to_seconds(std::int64_t ticks);

}  // namespace tutti::distributed
