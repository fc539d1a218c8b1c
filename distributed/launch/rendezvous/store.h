// Store: a few keys and values that all ranks of a run can see, for what has to be known before
// there are collectives (who is there, where, the NCCL unique id) and after they have broken (the
// first cause). One rank serves it over TCP, or it is a file that all can lock, or memory where
// ranks are threads. No data of a collective goes through it.
#pragma once

#include "../../world.h"

#include <unistd.h>

#include <map>
#include <mutex>

namespace tutti::distributed {
class ProcessGroup;
}

namespace tutti::distributed::rendezvous {

/// Who asks. Ranks meet only with their like: the same run id and world size, each rank once.
struct Member {
  int rank = 0;
  int size = 1;
  std::string run_id = {};
  std::chrono::milliseconds timeout =
      default_group_timeout;  ///< for the start and for each request
};

using Values = std::map<std::string, std::string>;

struct Request {
  enum class Operation : std::uint8_t { put, set, list, leave };
  Operation operation = Operation::list;
  std::string key = {};
  std::string value = {};
};

/// The table behind every kind of store. `put` keeps a value that is there, `set` replaces it; both
/// answer with what stands under the key now. `list` answers with all keys that begin with `key`.
struct Table {
  Values values;
  Values apply(const Request& request);
};

class Store {
 public:
  explicit Store(Member member) : member_(std::move(member)) {}
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const Member& member() const { return member_; }
  bool is_forked() const { return getpid() != owner_; }  ///< this is the copy in a child process
  virtual std::string where() const = 0;                 ///< "node1:29500", for messages
  /// Thread-safe. DistributedError where the store cannot be reached any more.
  virtual Values request(const Request& request) = 0;

  /// Writes `value` unless the key has one; returns what it has now: the first writer wins.
  std::string put(const std::string& key, const std::string& value);
  void set(const std::string& key, const std::string& value);
  Values list(const std::string& prefix);

  /// Why the run is broken, if it is. The first to `fail` decides; fail returns what stands.
  std::optional<Failure> failure();
  Failure fail(const Failure& why);

  /// Every rank calls it with the same `name`, once, and gets the values of all, by rank. At the
  /// deadline a TimeoutError that names the absent ranks; a DistributedError where the run has
  /// failed or two say the same rank.
  std::vector<std::string> gather(const std::string& name, const std::string& value);

 private:
  Member member_;
  pid_t owner_ = getpid();
};

/// The store of this run, at `address`: "HOST:PORT", where rank 0 listens and the others connect,
/// or "file:PATH", a file that all hosts see. A TCP store lets in only those who greet it with the
/// run id; a rank whose connection breaks without a farewell fails the run. Errors say what was
/// tried and how long.
std::shared_ptr<Store> open(const std::string& address, const Member& member);

/// The store of ranks that are threads: `table` is shared by them.
struct SharedTable {
  std::mutex mutex;
  Table table;
};
std::shared_ptr<Store> in_memory(std::shared_ptr<SharedTable> table, const Member& member);

/// A TCP store for a group that can already broadcast: rank 0 listens on a port that the system
/// chooses, and tells.
std::shared_ptr<Store> over(const ProcessGroup& group, std::chrono::milliseconds timeout);

// The two kinds behind open().
std::shared_ptr<Store> serve_tcp(const std::string& host, int port,
                                 const Member& member);  ///< rank 0; port 0: any
std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member);
std::shared_ptr<Store> open_file(const std::string& path, const Member& member);

}  // namespace tutti::distributed::rendezvous
