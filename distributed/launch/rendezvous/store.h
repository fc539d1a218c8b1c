// Store: a small table of keys and values that all ranks of a run can see. It holds what the ranks
// must know before there are collectives (who is there, where, the NCCL unique id) and after they
// have broken (the first cause). Rank 0 serves it over TCP, or it is memory where ranks are
// threads. The data of collectives never goes through it.
#pragma once

#include "../../../core/fork.h"
#include "../../world.h"

#include <functional>
#include <map>
#include <mutex>

namespace tutti::distributed {
class ProcessGroup;
}

namespace tutti::distributed::rendezvous {

/// The rank that uses a store. Only ranks with the same run id and world size share one, each rank
/// once.
struct Member {
  int rank = 0;
  int size = 1;
  std::string run_id = {};  ///< If empty, the ranks of a TCP store get one from rank 0.
  /// How long opening the store, gather() and each request may take.
  std::chrono::milliseconds timeout = default_group_timeout;
  /// What the ranks of a TCP store prove to each other that they know (secret.h). If empty, rank 0
  /// leaves a random one for the ranks of its own host, and no other host can take part.
  std::string secret = {};
};

using Values = std::map<std::string, std::string>;

struct Request {
  /// `put` writes a value unless the key has one, `set` in any case, `count` adds 1 to a value that
  /// is a number, `get` reads a key, `list` all keys that begin with `key`, and `leave` says that
  /// this rank needs the store no longer.
  enum class Operation : char {
    put = 'p',
    set = 's',
    count = 'c',
    get = 'g',
    list = 'l',
    leave = 'x'
  };
  static constexpr const char* operations = "pscglx";
  Operation operation = Operation::list;
  std::string key = {};
  std::string value = {};
};

/// The limits of every kind of store. A table for thousands of ranks stays far below them.
constexpr std::size_t max_key_bytes = 1024, max_value_bytes = std::size_t{1} << 18;
constexpr std::size_t max_table_keys = std::size_t{1} << 18;
/// Of all keys and values, and 64 bytes for each key.
constexpr std::size_t max_table_bytes = std::size_t{1} << 26;

/// Throws a ValueError where the key or the value of a request exceeds its limit.
void check_size(const Request& request);

/// The table behind every kind of store.
class Table {
 public:
  /// Carries out a request. Returns the keys that it found, with their values: for those that write
  /// the key itself with the value that it has now. Throws a DistributedError, and changes nothing,
  /// where the table would exceed its limits.
  Values apply(const Request& request);

 private:
  Values write(const std::string& key, const std::string& value);

  Values values_;
  std::size_t bytes_ = 0;
};

/// Returns a failure as the value of a store's key, cut to the size that a value may have.
std::string encode_failure(const Failure& why);

/// Returns the failure that a value stands for. A value that is none gives a failure that says so.
Failure decode_failure(const std::string& value);

class Store {
 public:
  explicit Store(Member member) : member_(std::move(member)) {}
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const Member& member() const { return member_; }
  /// Whether this object is a copy in a child of fork(), which must leave the store alone.
  bool is_forked() const { return process_.is_of_parent(); }
  /// Returns where the store is, for messages: "node1:29500".
  virtual std::string where() const = 0;
  /// Carries out a request. This is thread-safe. Throws a ValueError where the request is too
  /// large, and a DistributedError where the store is full or can no longer be reached.
  Values request(const Request& request);

  /// Writes `value` unless the key has one, so that the first writer wins. Returns the value that
  /// the key has now.
  std::string put(const std::string& key, const std::string& value);
  void set(const std::string& key, const std::string& value);
  /// Adds 1 to the number of `key`, which begins as 0, and returns it.
  int count(const std::string& key);
  std::optional<std::string> get(const std::string& key);
  /// Returns all keys that begin with `prefix`, with their values.
  Values list(const std::string& prefix);

  /// Returns why the run is broken, if it is.
  std::optional<Failure> failure();
  /// Breaks the run, unless it is broken already. Returns the failure that counts, the first one.
  Failure fail(const Failure& why);

  /// What rank 0 makes of the values of all ranks: a text for each.
  using Answers = std::function<std::vector<std::string>(const std::vector<std::string>&)>;
  /// Gives `value` to rank 0 and returns this rank's text of what `answers` makes there of the
  /// values of all, by rank. Every rank calls it once with the same `name`. At the deadline rank 0
  /// fails the run with the names of the absent ranks. Throws the failure of the run, as a
  /// TimeoutError where a deadline has passed.
  std::string gather(const std::string& name, const std::string& value, const Answers& answers);

 protected:
  /// For a constructor: names a run to which nobody has given an id.
  void set_run_id(std::string id) { member_.run_id = std::move(id); }

 private:
  /// Carries out a request whose size is legal.
  virtual Values carry_out(const Request& request) = 0;
  std::string request_write(Request::Operation operation, const std::string& key,
                            const std::string& value);
  bool collect(const std::string& name, std::vector<std::string>& values);
  Failure absence(const std::string& name);

  Member member_;
  ProcessMark process_;
};

/// Opens the store of this run at `address`, "HOST:PORT", where rank 0 listens and the others
/// connect. It serves only processes that prove that they know the run's secret and run id, and a
/// rank whose connection breaks before it has left fails the run. Errors say what was tried and how
/// long.
std::shared_ptr<Store> open(const std::string& address, const Member& member);

/// The table of ranks that are threads of one process.
struct SharedTable {
  std::mutex mutex;
  Table table;
};
/// Opens a store over a table that the ranks share.
std::shared_ptr<Store> in_memory(std::shared_ptr<SharedTable> table, const Member& member);

/// Opens a TCP store for the ranks of a group that can already broadcast: rank 0 listens on a port
/// that the system chooses, and broadcasts where, and a random secret. This call is collective.
std::shared_ptr<Store> over(const ProcessGroup& group, std::chrono::milliseconds timeout);

// ---- the kinds of store behind open()

/// Opens a TCP store on rank 0, at those of the hosts that are addresses of this one. Port 0 lets
/// the system choose one.
std::shared_ptr<Store> serve_tcp(const std::vector<std::string>& hosts, int port,
                                 const Member& member);
/// Opens a TCP store on another rank; rank 0 is at one of the hosts.
std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member);

}  // namespace tutti::distributed::rendezvous
