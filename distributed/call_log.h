// CallLog: the latest call that each rank has issued in each group of a world. World reads it when
// a rank is absent at a deadline, so that the error says where that rank was. It holds no tensors
// and knows nothing of waits.
#pragma once

#include "collective.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

namespace tutti::distributed {

/// One call as a rank keeps it on record: plain bytes, which backends may send.
struct CallRecord {
  std::int64_t sequence = 0;  ///< Its number in its group; 0 stands for no call yet.
  std::int64_t bytes = 0;
  Operation operation = Operation::barrier;
  char name[103] = {};     ///< The beginning of the name.
  std::int64_t stamp = 0;  ///< Its number among the calls of all groups of its CallLog.
};

/// Returns the same text as for a Collective, such as
/// "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)".
std::string describe(const CallRecord& record, const std::string& group);

/// The latest call of a rank in the group of this name; its sequence is 0 where there is none yet.
struct LatestCall {
  CallRecord record;
  std::string group;
};

/// Returns "A, B and C", the latest first, for at most six calls, and "no call" for none. The first
/// is where a rank that waits is waiting.
std::string calls_to_string(std::vector<LatestCall> calls);

/// The latest calls of the ranks that share one World object: one rank, or all where ranks are
/// threads.
class CallLog {
 public:
  /// The latest call of one rank in one group.
  class Entry {
   public:
    Entry(int world_rank, std::string group, std::atomic<std::int64_t>& stamps)
        : world_rank_(world_rank), group_(std::move(group)), stamps_(stamps) {}
    /// Replaces the record and returns the new one. Allocates nothing and waits for no other rank.
    /// The log must still exist.
    CallRecord record(const Collective& call);

   private:
    friend class CallLog;
    const int world_rank_;
    const std::string group_;
    std::atomic<std::int64_t>& stamps_;
    mutable std::mutex mutex_;
    CallRecord latest_;
  };

  /// Adds the entry of this rank in a group, which the rank's backend holds. The entries of groups
  /// that were destroyed stay until the rank makes another group, so that a rank that has departed
  /// is still described.
  std::shared_ptr<Entry> add(const GroupInfo& group);

  /// Returns the latest call of every group of this rank of the world, as calls_to_string() does;
  /// nothing where this object has no entry of the rank.
  std::optional<std::string> latest_calls(int world_rank) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_;
  std::atomic<std::int64_t> stamps_{0};  // the calls so far, of all ranks and groups
};

}  // namespace tutti::distributed
