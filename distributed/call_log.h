// CallLog: the latest call that each rank has issued in each group of a world, and the flight
// recorder of each rank, which holds its last calls in all groups. World reads the former when a
// rank is absent at a deadline, so that the error says where that rank was, and writes the latter
// when it fails. It holds no tensors and knows nothing of waits.
#pragma once

#include "collective.h"

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::distributed {

/// Returns the same text as for a Collective, such as
/// "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)".
std::string describe(const CallRecord& record, const std::string& group);

/// The latest call of a rank in the group of this name; its sequence is 0 where there is none yet.
struct LatestCall {
  CallRecord record;
  std::string group;
  std::uint64_t group_id = 0;  ///< GroupInfo::id.
};

/// Returns "A, B and C", the latest first, for at most six calls, and "no call" for none. A rank
/// that waits is in the first, unless it has issued calls of other groups since.
std::string calls_to_string(std::vector<LatestCall> calls);

/// Where a rank is in its groups, as it tells other ranks.
struct LatestCalls {
  /// The most groups that `sequences` tells. Older calls are left out.
  static constexpr std::size_t most = 15;

  std::string text = "no call";  ///< What calls_to_string() returns, for people.
  /// GroupInfo::id and the number of the latest call, 0 where there is none yet. The latest call
  /// comes first.
  std::vector<std::pair<std::uint64_t, std::int64_t>> sequences = {};

  /// Returns the number of the latest call in a group; nothing where the list does not tell it.
  std::optional<std::int64_t> sequence_of(std::uint64_t group_id) const;
  /// Returns whether the rank may be in groups that the list does not tell.
  bool is_full() const { return sequences.size() == most; }
};

/// Flight recorders that are being written.
class RecorderWrite {
 public:
  RecorderWrite() = default;
  explicit RecorderWrite(std::shared_future<void> done) : done_(std::move(done)) {}
  /// Waits until they are written, but only until five seconds after the beginning: a network file
  /// system may hang.
  void wait() const {
    if (done_.valid()) done_.wait_until(end_);
  }

 private:
  std::shared_future<void> done_;
  Clock::time_point end_ = Clock::now() + std::chrono::seconds(5);
};

/// The latest calls of the ranks that share one World object: one rank, or all where ranks are
/// threads.
class CallLog {
 public:
  /// The latest call of one rank in one group.
  class Entry {
   public:
    Entry(int world_rank, const GroupInfo& group, std::shared_ptr<FlightRecorder> recorder,
          std::atomic<std::int64_t>& stamps)
        : world_rank_(world_rank),
          group_(group.group),
          recorder_(std::move(recorder)),
          recorded_group_(recorder_->add_group(group.group, group.world_ranks)),
          group_id_(id_of(group, recorded_group_.number)),
          stamps_(stamps) {}
    /// Returns what Backend puts into GroupInfo::id.
    std::uint64_t group_id() const { return group_id_; }
    /// Replaces the record, adds it to the flight recorder and returns it. Allocates nothing and
    /// waits for no other rank. The log must still exist.
    CallRecord record(const Collective& call);

   private:
    friend class CallLog;
    static std::uint64_t id_of(const GroupInfo& group, std::int64_t number);

    const int world_rank_;
    const std::string group_;
    const std::shared_ptr<FlightRecorder> recorder_;
    const FlightRecorder::Group recorded_group_;
    const std::uint64_t group_id_;
    std::atomic<std::int64_t>& stamps_;
    mutable std::mutex mutex_;
    CallRecord latest_;
  };

  /// Adds the entry of this rank in a group, which the rank's backend holds. The entries of groups
  /// that were destroyed stay until the rank makes another group, so that a rank that has departed
  /// is still described.
  std::shared_ptr<Entry> add(const GroupInfo& group);

  /// Returns the latest call of every group of this rank of the world; nothing where this object
  /// has no entry of the rank.
  std::optional<LatestCalls> latest_calls(int world_rank) const;

  /// Writes the flight recorder of every rank that has an entry, where a folder is set
  /// (flight_recorder_file.h), with the call that has failed, if there was one, and the cause.
  /// Throws nothing and waits for no file; whoever tells the failure waits for the result.
  RecorderWrite write_flight_recorders(const std::string& call,
                                       const std::string& cause) const noexcept;

 private:
  // The recorder of a rank, and the backend of its groups.
  struct Recorder {
    std::shared_ptr<FlightRecorder> recorder;
    std::string backend;
  };

  static void write(const std::string& folder, const std::map<int, Recorder>& recorders,
                    const std::string& failure) noexcept;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_;
  std::map<int, Recorder> recorders_;    // by rank in the world
  std::atomic<std::int64_t> stamps_{0};  // the calls so far, of all ranks and groups
};

/// Returns the call that this thread has recorded since the last time it asked, for the Work that
/// is made of it; none where it has recorded none.
RecordedCall take_recorded_call();

}  // namespace tutti::distributed
