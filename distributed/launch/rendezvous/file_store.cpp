// The store in a file that all ranks can lock. Its mode, for this user alone, is its protection.
// Rank 0 makes it and removes it; the others wait for it. It begins with a header, which names the
// run and rank 0's process; every put or set appends a record under the lock. Each process reads
// new records into a table of its own before it answers a request. Unlike a TCP store it does not
// notice that a process has died.
//
// A file is replaced by another one at the same path in two cases: a new run finds that the rank 0
// of the file has been killed, and records that are out of date fill most of the file. The last
// record of the replaced file says so.
#include "messages.h"
#include "private_file.h"
#include "process_identity.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view file_magic = "tutti rendezvous 2\n";
constexpr std::string_view replaced_key = "\1replaced";  // of the record that says so
constexpr std::size_t min_bytes_to_compact = std::size_t{1} << 20;

struct Header {
  std::string run_id = {};
  std::uint32_t size = 0;
  ProcessIdentity rank_0 = {};

  bool operator==(const Header&) const = default;
};

std::string encode(const Header& header) {
  std::string message, text(file_magic);
  write_text(message, header.run_id);
  write_number(message, header.size);
  for (const std::string& part :
       {header.rank_0.host, header.rank_0.numbering, header.rank_0.pid, header.rank_0.started})
    write_text(message, part);
  write_text(text, message);
  return text;
}

enum class Contents { nothing, header, others };

// Reads the header at the beginning of `text`. An incomplete one counts as nothing: its writer has
// been killed, or writes it now.
Contents decode(const std::string& text, Header& header) {
  if (!text.starts_with(
          std::string_view(file_magic).substr(0, std::min(text.size(), file_magic.size()))))
    return Contents::others;
  if (text.size() < file_magic.size()) return Contents::nothing;
  MessageReader file{std::string_view(text).substr(file_magic.size())};
  const std::string message = file.text();
  if (!file.good) return Contents::nothing;
  MessageReader reader{message};
  header.run_id = reader.text();
  header.size = reader.number();
  for (std::string* part :
       {&header.rank_0.host, &header.rank_0.numbering, &header.rank_0.pid, &header.rank_0.started})
    *part = reader.text();
  return reader.is_complete() ? Contents::header : Contents::others;
}

std::string encode_record(std::string_view key, std::string_view value) {
  std::string record;
  write_text(record, key);
  write_text(record, value);
  return record;
}

class FileStore : public Store {
 public:
  FileStore(std::string path, const Member& member) : Store(member), path_(std::move(path)) {
    if (member.rank == 0) make_file();
    else wait_for_file();
  }
  ~FileStore() override {
    if (member().rank == 0 && !is_forked()) remove_file();
  }

  std::string where() const override { return path_; }

 private:
  Values carry_out(const Request& request) override {
    const std::lock_guard guard(mutex_);
    const Lock lock(*this);
    catch_up();
    const bool writes =
        request.operation == Request::Operation::set ||
        (request.operation == Request::Operation::put && !table_.values().contains(request.key));
    Values found = table_.apply(request);
    if (!writes) return found;
    try {
      append(encode_record(request.key, request.value));
    } catch (...) {
      forget_records();  // the table has a value that the file has not
      throw;
    }
    if (end_ > compact_at_) compact();
    return found;
  }

  // Holds the lock of the file, also where another file takes its place meanwhile.
  struct Lock {
    explicit Lock(FileStore& of) : store(of) { store.lock(); }
    ~Lock() { flock(store.file_.get(), LOCK_UN); }
    FileStore& store;
  };

  // Taking the lock has a deadline, because its holder may have been stopped.
  void lock() {
    const auto deadline = deadline_after(member().timeout);
    while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) throw_file_error("lock", path_);
      if (Clock::now() >= deadline)
        throw TimeoutError(
            fmt::format("rendezvous: {} stayed locked for {}; look for a rank that was stopped",
                        path_, distributed::to_string(member().timeout)));
      std::this_thread::sleep_for(1ms);
    }
  }

  // ---- opening

  FileDescriptor open_file_with(int flags) const {
    return open_private_file(path_, O_RDWR | O_NOFOLLOW | flags, max_private_file_bytes,
                             "the rendezvous file");
  }

  // Makes the file, or replaces one whose rank 0 has been killed.
  void make_file() {
    header_ = {member().run_id, static_cast<std::uint32_t>(member().size), own_identity()};
    for (;;) {
      file_ = open_file_with(O_CREAT);
      if (!file_.is_open()) throw_file_error("create", path_);  // its folder does not exist
      const Lock lock(*this);
      if (!is_at_path()) continue;  // another rank 0 has replaced it
      const std::string text = read_from(file_, 0, path_);
      Header there;
      const Contents contents = read_header(text, there);
      if (contents == Contents::nothing) return write_header();
      throw_unless_abandoned(there);
      const Header own = std::exchange(header_, there);
      forget_records();
      read_new_records();  // tells where the next record belongs
      header_ = own;
      replace_file(encode(header_));
      return forget_records();
    }
  }

  // Waits for the file of this run's rank 0.
  void wait_for_file() {
    const auto deadline = deadline_after(member().timeout);
    for (auto pause = 1ms;; pause = std::min(2 * pause, 50ms)) {
      std::string why = "rank 0 has not made it";
      if (FileDescriptor found = open_file_with(0); found.is_open()) {
        file_ = std::move(found);
        const Lock lock(*this);
        if (is_at_path() && read_header(read_from(file_, 0, path_), header_) == Contents::header) {
          const ProcessStatus status = status_of(header_.rank_0);
          if (status == ProcessStatus::runs) expect_this_run();
          if (status != ProcessStatus::ended && is_this_run()) accept_header();
          if (status == ProcessStatus::runs ||
              (status == ProcessStatus::unknown && is_this_run() && !looks_over()))
            return;
          why = status == ProcessStatus::ended
                    ? "it is that of a rank 0 that has ended, and no other has replaced it"
                    : why_it_looks_over();
        }
      }
      if (Clock::now() >= deadline)
        throw TimeoutError(fmt::format(
            "rendezvous: rank {} waited {} for {}: {}; is rank 0 started, and does it see the "
            "same file?",
            member().rank, distributed::to_string(member().timeout), path_, why));
      std::this_thread::sleep_for(pause);
    }
  }

  // Returns whether the run of the file has failed, or has this rank already, which has yet to
  // write its first key. A rank 0 that is started again on its own host replaces such a file.
  bool looks_over() const {
    const Values& values = table_.values();
    const std::string own = fmt::format("/{}", member().rank);
    return values.contains(failure_key) ||
           std::any_of(values.begin(), values.end(),
                       [&](const auto& entry) { return entry.first.ends_with(own); });
  }

  std::string why_it_looks_over() const {
    if (!is_this_run()) return mismatch();
    return fmt::format(
        "it is that of a rank 0 on host {}, whose run has failed or has a rank {} already; remove "
        "it if that run is over",
        header_.rank_0.host, member().rank);
  }

  Contents read_header(const std::string& text, Header& header) const {
    const Contents contents = decode(text, header);
    if (contents == Contents::others)
      tutti::fail<DistributedError>("rendezvous: {} exists and is no rendezvous file; name another",
                                    path_);
    return contents;
  }

  void throw_unless_abandoned(const Header& there) const {
    const ProcessStatus status = status_of(there.rank_0);
    if (status == ProcessStatus::ended) return;
    tutti::fail<DistributedError>(
        "rendezvous: {} belongs to run '{}', whose rank 0 {} process {} of host {}; {}", path_,
        there.run_id, status == ProcessStatus::runs ? "is the running" : "was", there.rank_0.pid,
        there.rank_0.host,
        status == ProcessStatus::runs ? "name another file"
                                      : "remove it if that run is over, or name another");
  }

  bool is_this_run() const {
    return header_.run_id == member().run_id &&
           header_.size == static_cast<std::uint32_t>(member().size);
  }

  std::string mismatch() const {
    constexpr const char* advice = "remove it if that run is over, or name another";
    if (header_.run_id != member().run_id)
      return fmt::format("it belongs to run '{}', this process to run '{}'; {}", header_.run_id,
                         member().run_id, advice);
    return fmt::format("it was made for {} ranks, this one was started for {}; {}", header_.size,
                       member().size, advice);
  }

  void expect_this_run() const {
    if (!is_this_run())
      tutti::fail<DistributedError>("rendezvous: {} is of another run: {}", path_, mismatch());
  }

  void accept_header() {
    forget_records();
    read_new_records();
  }

  // Removes the file unless it has become that of another run. Ranks that have it open can go on
  // reading it. The lock keeps them from replacing it meanwhile, which would bring it back.
  void remove_file() noexcept {
    try {
      const Lock lock(*this);
      catch_up();
      if (is_at_path()) unlink(path_.c_str());
    } catch (const std::exception&) {  // the next rank 0 replaces the file that stays
    }
  }

  void write_header() {
    end_ = 0;
    append(encode(header_));
  }

  // Returns whether the path leads to the file that is open.
  bool is_at_path() const { return rendezvous::is_at_path(file_, path_); }

  // ---- replacing the file

  // Puts a file with these contents in the place of the open one, which must be locked, and goes on
  // with it.
  void replace_file(const std::string& contents) {
    std::string draft;
    FileDescriptor next = make_draft(path_, draft);
    try {
      write_at(next, 0, contents, draft);
      if (flock(next.get(), LOCK_EX | LOCK_NB) != 0) throw_file_error("lock", draft);
      append(encode_record(replaced_key, ""));
      if (std::rename(draft.c_str(), path_.c_str()) != 0) throw_file_error("create", path_);
    } catch (...) {
      unlink(draft.c_str());
      throw;
    }
    file_ = std::move(next);
    end_ = static_cast<std::int64_t>(contents.size());
  }

  // Writes the records anew where most of them are out of date. A file that rank 0 has removed
  // stays removed.
  void compact() {
    if (!is_at_path()) return;
    std::string contents = encode(header_);
    for (const auto& [key, value] : table_.values()) contents += encode_record(key, value);
    compact_at_ =
        std::max<std::int64_t>(compact_at_, 4 * static_cast<std::int64_t>(contents.size()));
    if (end_ <= compact_at_) return;
    try {
      replace_file(contents);
    } catch (const Error&) {  // such as a full disk: the file goes on growing
      compact_at_ = 2 * end_;
    }
  }

  // Reads what is new, from the file that has replaced this one if one has.
  void catch_up() {
    read_new_records();
    // A writer that was killed may have said so and not done it.
    while (is_replaced_ && !is_at_path()) {
      FileDescriptor next = open_file_with(0);
      if (!next.is_open())
        tutti::fail<DistributedError>("rendezvous: {} is gone; rank 0 has ended", path_);
      // The file of another run must not become this store's.
      Header there;
      if (read_header(read_from(next, 0, path_), there) != Contents::header || there != header_)
        tutti::fail<DistributedError>(
            "rendezvous: {} belongs to another run now, which has found rank 0 of this one ended; "
            "start this run again",
            path_);
      file_ = std::move(next);
      forget_records();  // those of the old file, also if the lock cannot be taken
      lock();
      read_new_records();
    }
  }

  // ---- records

  void forget_records() {
    table_ = {};
    end_ = static_cast<std::int64_t>(encode(header_).size());
    is_replaced_ = false;
  }

  // Reads the records that are new into the table. An incomplete one at the end is left out: its
  // writer has died, and the next record overwrites it.
  void read_new_records() {
    const std::string text = read_from(file_, end_, path_);
    std::size_t complete = 0;
    for (MessageReader reader{text}; !reader.rest.empty();) {
      Request record{Request::Operation::set, reader.text()};
      record.value = reader.text();
      if (!reader.good) break;
      complete = text.size() - reader.rest.size();
      if (record.key == replaced_key) is_replaced_ = true;
      else add_record(record);
    }
    end_ += static_cast<std::int64_t>(complete);
  }

  void add_record(const Request& record) {
    try {
      check_size(record);
    } catch (const Error& error) {
      tutti::fail<DistributedError>("rendezvous: {} is damaged ({}); remove it and start again",
                                    path_, error.what());
    }
    table_.apply(record);
  }

  void append(const std::string& text) {
    if (ftruncate(file_.get(), end_) != 0) throw_file_error("truncate", path_);
    write_at(file_, end_, text, path_);
    end_ += static_cast<std::int64_t>(text.size());
  }

  std::string path_;
  std::mutex mutex_;
  FileDescriptor file_;
  Header header_;
  std::int64_t end_ = 0;      // the end of the records that table_ holds
  bool is_replaced_ = false;  // the file says that another one has taken its place
  std::int64_t compact_at_ = min_bytes_to_compact;
  Table table_;
};

}  // namespace

std::shared_ptr<Store> open_file(const std::string& path, const Member& member) {
  return std::make_shared<FileStore>(path, member);
}

}  // namespace tutti::distributed::rendezvous
