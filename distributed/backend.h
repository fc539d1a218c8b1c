// What an implementation of a process group provides, and the vocabulary it shares with
// ProcessGroup: Collective (one call, checked and with dense tensors), Fingerprint (what ranks
// compare before they exchange anything) and Failure (why a group is broken). Users see only
// process_group.h.
#pragma once

#include "process_group.h"
#include "watcher.h"

#include <atomic>
#include <optional>
#include <span>

namespace tutti::distributed {

enum class Operation : std::uint8_t { all_reduce, all_gather, broadcast, reduce_scatter, barrier };

std::string to_string(Operation operation);

/// One call of one rank. Both tensors are row-major without gaps, on a device the backend accepts,
/// without history; all_reduce and broadcast work in place (input and output are the same). A
/// barrier has neither.
struct Collective {
  Operation operation = Operation::barrier;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  Tensor input = {};
  Tensor output = {};
  std::string name = {};
  std::int64_t sequence = 0;             ///< the how-manieth collective of this group, from 1
  std::chrono::milliseconds timeout{0};  ///< how long a wait may last

  std::int64_t bytes() const;  ///< of the input
};

/// One finished collective, as this rank saw it.
struct Timing {
  const Collective& call;
  std::chrono::steady_clock::time_point launched, done;
  double waited = 0;  ///< seconds that the caller was held up in wait()
};

/// What must be the same on every rank for a collective to be one. Plain bytes: backends send it as
/// it is.
struct Fingerprint {
  std::int64_t sequence = 0;
  std::int64_t count = 0;  ///< elements of the input
  std::uint64_t name_hash = 0;
  std::int32_t root = 0;
  Operation operation = Operation::barrier;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  char name[89] = {};  ///< as much of it as fits, for the error

  bool operator==(const Fingerprint& other) const;
};

Fingerprint fingerprint(const Collective& call);
std::string to_string(
    const Fingerprint& print);  ///< "all_reduce(sum) #8 of float32 x 1024 ('layer1.bn')"

/// Empty where all agree; else a text that shows rank 0's side and that of the first rank that
/// differs from it.
std::string disagreement(std::span<const Fingerprint> prints);

/// Why a group is broken. Once it is, every call on it fails at once.
struct Failure {
  std::string at =
      {};  ///< the collective, as `describe` says it; empty where the cause lies outside of one
  std::string what = {};
  bool timeout = false;
};

class Backend {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    int local_rank = 0;
    std::string group = "single";  ///< its name
    std::string kind = "single";   ///< what ProcessGroup::backend() says
    std::chrono::milliseconds timeout = ProcessGroup::default_timeout;
  };

  explicit Backend(Place place) : place_(std::move(place)) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const Place& place() const { return place_; }
  /// This rank's place in a group of the ranks `members` of this one, in their order.
  Place place_in(const std::vector<int>& members, const std::string& name) const;
  /// Tensors of other devices are staged by ProcessGroup through the staging_device().
  virtual bool accepts(Device device) const = 0;
  virtual Device staging_device() const { return Device::cpu(); }
  /// Uninitialised memory that this backend moves best.
  virtual Tensor empty(const Shape& shape, TensorOptions options) {
    return tutti::empty(shape, options);
  }
  /// Whether a group of one rank issues its collectives, too.
  virtual bool issues_alone() const { return false; }
  /// Starts a collective without waiting for other ranks. The result keeps the tensors alive until
  /// it is done.
  virtual std::shared_ptr<Work::State> submit(const Collective& call) = 0;
  /// Called by exactly the ranks `members` of this group, which become ranks 0, 1, ... of the new
  /// one.
  virtual std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                            const std::string& name) = 0;
  /// Called by the ranks that join none of the groups that others are in subgroup() for.
  virtual void stay_out() {}
  /// Breaks the group: every rank's waits, and every later call, fail with this cause.
  virtual void abort(const std::string& cause) = 0;
  /// Why the group is broken, where it is. Never blocks.
  virtual std::optional<Failure> failure() { return {}; }
  /// Whether this process is a fork of the one that made the group, which alone may use it.
  bool is_inherited() const { return process_ != process_generation(); }

  // Counted by ProcessGroup, here because copies of a handle share them.
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> bytes{0};
  std::function<void(const Timing&)> observer =
      {};  ///< told of every collective once it was waited for

 private:
  Place place_;
  std::uint64_t process_ = process_generation();
};

/// "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)"
std::string describe(const Collective& call, const Backend::Place& place);

/// Throws the failure as the rank at `place` sees it from `call`: a TimeoutError or a
/// DistributedError.
[[noreturn]] void raise(const Failure& failure, const Collective& call,
                        const Backend::Place& place);

/// "rank 3 did not arrive within 30 s; it last completed #807": the text of a timeout. `completed`
/// may be 0.
std::string absence(std::span<const int> missing, std::chrono::milliseconds timeout,
                    std::int64_t completed);
/// "rank 3 will never arrive: its process is at its exit; it last completed #807"
std::string departure(std::span<const int> left, const char* how, std::int64_t completed);
/// "rank 3", "ranks 1 and 3": for error messages.
std::string ranks_to_string(std::span<const int> ranks);
std::string to_string(std::chrono::milliseconds duration);  ///< "250 ms", "30 s"

/// now + timeout, without overflowing for "for ever".
std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout);

}  // namespace tutti::distributed
