// Collective: one call of a collective operation by one rank, and the vocabulary that everything
// in distributed/ shares: call options, Work, deadlines and the texts of errors. This header lies
// below worlds, backends and process groups and includes none of them.
#pragma once

#include "../core/fork.h"
#include "../core/tensor.h"
#include "flight_recorder.h"
#include "group_info.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti::distributed {

/// The options of one call. `name` tells what the call is for (a layer, a bucket) and
/// stands in every error; a `timeout` of zero means the group's.
struct CallOptions {
  std::string name = {};
  std::chrono::milliseconds timeout{0};
  /// What errors say behind the name. Unlike the name, it need not be equal on all ranks.
  std::string detail = {};
  /// What else must be equal on all ranks: the step, object and options that the call belongs to,
  /// such as ", backward 12". It stands only in the error for ranks that are at different calls.
  std::string step = {};
  /// Whether the call is a part of a model's forward or backward. Errors then say what to do about
  /// a model that one rank runs alone.
  bool of_model = false;
};

/// A collective that has been started. Its tensors must not be touched before wait() has returned
/// or is_done() has returned true. Where the backend's capabilities say `device_waits`, wait()
/// returns at once and orders the caller's current stream after the collective instead.
class [[nodiscard]] Work {
 public:
  /// The state of a started collective, which a backend implements.
  struct State {
    virtual ~State() = default;
    /// Returns when the collective is done. Throws the failure of the group, which is a
    /// TimeoutError where a deadline has passed.
    virtual void wait() = 0;
    /// Returns whether wait() would return or throw at once. Does not wait for other ranks.
    virtual bool is_done() = 0;
    /// Returns, after wait(), when the collective was done. A default-constructed time point means
    /// that the return of wait() tells it best.
    virtual std::chrono::steady_clock::time_point done_at() const { return {}; }
  };

  /// Makes a Work that is already done.
  Work() = default;
  /// `recorded` is the call in the flight recorder of the rank, where that has it.
  explicit Work(std::shared_ptr<State> state, RecordedCall recorded = {});
  /// Waits until the collective is done and throws what went wrong. In the child of a fork it
  /// throws a DistributedError, because the parent's collectives never complete there.
  void wait();
  /// Returns whether the collective is done or has failed, without waiting for other ranks. Once it
  /// returns true, the tensors hold the result, and wait() returns at once or throws what went
  /// wrong. Only one of the threads that share a Work may call it or wait() at a time.
  bool is_done();

 private:
  std::shared_ptr<State> state_;
  RecordedCall recorded_;
  ProcessMark process_;  // of the process that issued it
};

/// One call of one rank, after its arguments have been checked. Both tensors are row-major without
/// gaps, on a device that the backend accepts, without autograd history. all_reduce and broadcast
/// work in place: input and output are the same tensor. A barrier has neither.
struct Collective {
  Operation operation = Operation::barrier;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  Tensor input = {};
  Tensor output = {};
  std::string name = {};
  std::string detail = {};    ///< What errors say behind the name; not compared between ranks.
  std::string step = {};      ///< What ranks compare beside the name (CallOptions::step).
  bool of_model = false;      ///< As in CallOptions.
  std::int64_t sequence = 0;  ///< The number of this collective in its group, counted from 1.
  std::chrono::milliseconds timeout{0};  ///< How long a wait for it may last.
  Fingerprint fingerprint = {};          ///< What ranks compare; submit() sets it.

  std::int64_t bytes() const;  ///< Of the input.
};

/// Returns the fingerprint of a call on a path.
Fingerprint fingerprint(const Collective& call, Path path = Path::host);

/// Returns a text such as "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)".
std::string describe(const Collective& call, const GroupInfo& group);

/// Where a rank is in its groups, as it tells other ranks.
struct LatestCalls {
  /// The most groups that `sequences` tells. Older calls are left out.
  static constexpr std::size_t most = 15;

  LatestCalls() = default;
  explicit LatestCalls(std::vector<FlightRecorder::Group> groups);

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

/// Returns 0, 1, ..., size - 1.
std::vector<int> all_ranks(int size);

/// Returns "rank 3" or "ranks 1, 2 and 3".
std::string ranks_to_string(std::span<const int> ranks);

/// Returns the text of an exception, for the ranks that get it as a cause.
std::string text_of(const std::exception_ptr& error);

/// Returns "250 ms" or "30 s".
std::string to_string(std::chrono::milliseconds duration);

/// Throws a ValueError that begins with `where` unless the timeout is positive.
void check_timeout(const char* where, std::chrono::milliseconds timeout);

/// The clock of deadlines.
using Clock = std::chrono::steady_clock;

/// Returns start + timeout. A timeout of more than a year counts as a year, so that the sum does
/// not overflow.
Clock::time_point deadline_after(std::chrono::milliseconds timeout,
                                 Clock::time_point start = Clock::now());

}  // namespace tutti::distributed
