// Collective: one call of a collective operation by one rank, its fingerprint, which the ranks
// compare, and the vocabulary that everything in distributed/ shares: operations, call options,
// deadlines and the texts of errors. This header lies below worlds, backends and process groups and
// includes none of them.
#pragma once

#include "../core/tensor.h"
#include "group_info.h"

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace tutti::distributed {

/// How a collective combines the values of the ranks.
enum class ReduceOp { sum, mean, min, max };
/// The collective operations.
enum class Operation : std::uint8_t { all_reduce, all_gather, broadcast, reduce_scatter, barrier };
/// The path of a call's data: through the hosts, or between devices by NCCL.
enum class Path : std::uint8_t { host, nccl };

/// Returns the name of the reduction, such as "sum".
const char* to_string(ReduceOp op);
/// Returns the name of the operation, such as "all_reduce".
const char* to_string(Operation operation);

/// The properties of a call that must be equal on all ranks for the calls to be one collective.
/// Backends send a Fingerprint as plain bytes.
struct Fingerprint {
  std::int64_t sequence = 0;    ///< The number of the call in its group; 0 stands for no call.
  std::uint64_t name_hash = 0;  ///< Of name and step.
  std::int64_t count = 0;       ///< The number of elements of the input.
  /// The sizes of the input, up to the largest int32, and how many there are.
  std::int32_t sizes[Dims::max_rank] = {};
  std::int32_t root = 0;
  Operation operation = Operation::barrier;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t rank = 0;
  Path path = Path::host;
  // What follows is not compared.
  std::uint8_t of_model = 0;  ///< As in CallOptions.
  std::uint8_t name_bytes = 0, step_bytes = 0;
  /// The beginning of name, step and detail, for the error text. It ends where the header of a
  /// message does, which MPI sends at once up to 256 bytes.
  char text[188] = {};

  bool operator==(const Fingerprint& other) const;
  /// Returns a hash of what operator==() compares.
  std::uint64_t hash() const;
  std::int64_t bytes() const;  ///< Of the input.
  std::string name() const { return {text, name_bytes}; }
  std::string name_and_step() const { return {text, std::size_t{name_bytes} + step_bytes}; }
};

/// Returns a text such as "all_reduce(sum) #2 of float32 of shape (2, 6) (layer1.bn)".
std::string to_string(const Fingerprint& fingerprint);
/// Returns a text such as "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)", with this name.
std::string describe(const Fingerprint& fingerprint, const std::string& group,
                     const std::string& name);

/// What errors advise about a call of a model that some ranks do not take part in.
inline constexpr const char* advice_for_one_rank =
    ". What one rank does alone belongs under NoGrad, in eval(), or into a no_sync() scope";

/// Compares the ranks' fingerprints. Returns an empty string where all are equal; else a text that
/// shows the first rank's call and that of the next rank that differs from it. The fingerprints are
/// those of `ranks`; where that is empty, of the ranks 0, 1, ...
std::string disagreement(std::span<const Fingerprint> fingerprints,
                         std::span<const int> ranks = {});

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

/// One call of one rank, after its arguments have been checked. Both tensors are row-major without
/// gaps, on a device that the backend accepts, without autograd history. all_reduce and broadcast
/// work in place: input and output are the same tensor. A barrier has neither.
struct Collective {
  Operation operation = Operation::barrier;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  Tensor input = {};
  Tensor output = {};
  CallOptions options = {};      ///< Its timeout is that of the group where the caller gave none.
  std::int64_t sequence = 0;     ///< The number of this collective in its group, counted from 1.
  Fingerprint fingerprint = {};  ///< What ranks compare; ProcessGroup sets it.

  std::int64_t bytes() const;  ///< Of the input.
};

/// Returns the fingerprint of a call on a path.
Fingerprint fingerprint(const Collective& call, Path path = Path::host);

/// Returns a text such as "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)".
std::string describe(const Collective& call, const GroupInfo& group);

/// A collective that has been started, which a backend implements. Work waits for it.
struct WorkState {
  virtual ~WorkState() = default;
  /// Returns when the collective is done. Throws the failure of the group, which is a
  /// TimeoutError where a deadline has passed.
  virtual void wait() = 0;
  /// Returns whether wait() would return or throw at once. Does not wait for other ranks.
  virtual bool is_done() = 0;
  /// Returns, after wait(), when the collective was done. A default-constructed time point means
  /// that the return of wait() tells it best.
  virtual std::chrono::steady_clock::time_point done_at() const { return {}; }
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
