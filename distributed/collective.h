// Collective: one call of a collective operation by one rank, and the vocabulary that everything
// in distributed/ shares: operations, call options, fingerprints and the texts that describe a
// call. This header lies below worlds, backends and process groups and includes none of them.
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

/// How a collective combines the values of the ranks.
enum class ReduceOp { sum, mean, min, max };
/// The collective operations.
enum class Operation : std::uint8_t { all_reduce, all_gather, broadcast, reduce_scatter, barrier };

/// Returns the name of the reduction, such as "sum".
std::string to_string(ReduceOp op);
/// Returns the name of the operation, such as "all_reduce".
std::string to_string(Operation operation);

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

  std::int64_t bytes() const;  ///< Of the input.
};

/// The properties of a call that must be equal on all ranks for the calls to be one collective.
/// Backends send a Fingerprint as plain bytes.
struct Fingerprint {
  std::int64_t sequence = 0;
  std::uint64_t name_hash = 0;  ///< Of name and step.
  std::int64_t count = 0;       ///< The number of elements of the input.
  /// The sizes of the input, up to the largest int32, and how many there are.
  std::int32_t sizes[Dims::max_rank] = {};
  std::int32_t root = 0;
  Operation operation = Operation::barrier;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t rank = 0;
  std::uint8_t of_model = 0;  ///< As in CallOptions; not compared.
  /// The beginning of name, step and detail, for the error text; not compared. It ends where the
  /// header of a message does, which MPI sends at once up to 256 bytes.
  char name[191] = {};

  bool operator==(const Fingerprint& other) const;
  /// Returns a hash of what operator==() compares.
  std::uint64_t hash() const;
};

/// Returns the fingerprint of a call.
Fingerprint fingerprint(const Collective& call);

/// Returns a text such as "all_reduce(sum) #8 of float32 of shape (2, 6) (layer1.bn)".
std::string to_string(const Fingerprint& fingerprint);

/// What errors advise about a call of a model that some ranks do not take part in.
inline constexpr const char* advice_for_one_rank =
    ". What one rank does alone belongs under NoGrad, in eval(), or into a no_sync() scope";

/// Compares the ranks' fingerprints. Returns an empty string where all are equal; else a text that
/// shows the first rank's call and that of the next rank that differs from it. The fingerprints are
/// those of `ranks`; where that is empty, of the ranks 0, 1, ...
std::string disagreement(std::span<const Fingerprint> fingerprints,
                         std::span<const int> ranks = {});

/// Returns a text such as "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)".
std::string describe(const Collective& call, const GroupInfo& group);

/// Returns what a flight recorder keeps of a call.
CallRecord call_record(const Collective& call);

/// Returns "A, B and C", the latest first, for at most six calls, and "no call" for none. A rank
/// that waits is in the first, unless it has issued calls of other groups since.
std::string calls_to_string(std::vector<LatestCall> calls);

/// Where a rank is in its groups, as it tells other ranks.
struct LatestCalls {
  /// The most groups that `sequences` tells. Older calls are left out.
  static constexpr std::size_t most = 15;

  LatestCalls() = default;
  explicit LatestCalls(std::vector<LatestCall> calls);

  std::string text = "no call";  ///< What calls_to_string() returns, for people.
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

/// The ranks that an error names because they did not do their part in time.
struct Absence {
  std::vector<int> ranks;
  std::string what = "did not arrive";
  std::chrono::milliseconds timeout{0};  ///< 0 where the text does not tell it.
  int of = 0;                            ///< The number of all ranks; 0 likewise.
};
/// Returns a text such as "ranks 1 and 3 did not arrive within 30 s".
std::string to_string(const Absence& absence);

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
