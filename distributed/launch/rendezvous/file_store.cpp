// The store in a file that all ranks can lock. The file begins with a header that holds the run id;
// every put or set appends a record under the lock. Each process reads new records into a table of
// its own before it answers a request. Unlike a TCP store it does not notice that a process has
// died.
#include "store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

constexpr const char* magic = "tutti rendezvous 1, run ";

class FileStore : public Store {
 public:
  FileStore(std::string path, const Member& member) : Store(member), path_(std::move(path)) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) give_up("open");
    try {
      const Lock lock(*this);
      join();
    } catch (...) {
      close(file_);
      throw;
    }
  }
  ~FileStore() override {
    if (member().rank == 0 && !is_forked())
      unlink(path_.c_str());  // ranks that have it open can go on reading it
    close(file_);
  }

  std::string where() const override { return path_; }

  Values request(const Request& request) override {
    const std::lock_guard guard(mutex_);
    const Lock lock(*this);
    read_new_records();
    const bool writes =
        request.operation == Request::Operation::set ||
        (request.operation == Request::Operation::put && !table_.values.contains(request.key));
    if (writes) {
      const std::uint32_t sizes[2] = {static_cast<std::uint32_t>(request.key.size()),
                                      static_cast<std::uint32_t>(request.value.size())};
      append(std::string(reinterpret_cast<const char*>(sizes), sizeof(sizes)) + request.key +
             request.value);
    }
    return table_.apply(request);
  }

 private:
  // Holds the lock of the file. Taking it has a deadline, because its holder may have been stopped.
  struct Lock {
    explicit Lock(FileStore& store) : file(store.file_) {
      const auto deadline = deadline_after(store.member().timeout);
      while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) store.give_up("lock");
        if (std::chrono::steady_clock::now() >= deadline)
          throw TimeoutError(
              fmt::format("rendezvous: {} stayed locked for {}; look for a rank that was stopped",
                          store.path_, distributed::to_string(store.member().timeout)));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    ~Lock() { flock(file, LOCK_UN); }
    int file;
  };

  [[noreturn]] void give_up(const char* what) const {
    tutti::fail<DistributedError>("rendezvous: cannot {} {}: {}", what, path_,
                                  std::strerror(errno));
  }

  // The first process writes the header, the others compare it with theirs.
  void join() {
    const std::string header = magic + member().run_id + "\n";
    const std::string there = read_from(0);
    if (there.empty()) return append(header);
    const auto end = there.find('\n');
    if (!there.starts_with(magic) || end == std::string::npos)
      tutti::fail<DistributedError>("rendezvous: {} exists and is no rendezvous file; name another",
                                    path_);
    if (there.compare(0, end + 1, header) != 0)
      tutti::fail<DistributedError>(
          "rendezvous: {} belongs to run '{}', this process to run '{}'; remove it if that run is "
          "over, or "
          "name another",
          path_, there.substr(std::strlen(magic), end - std::strlen(magic)), member().run_id);
    end_ = static_cast<off_t>(header.size());
    read_new_records();
  }

  std::string read_from(off_t begin) const {
    struct stat status = {};
    if (fstat(file_, &status) != 0) give_up("examine");
    std::string text(static_cast<std::size_t>(std::max<off_t>(0, status.st_size - begin)), '\0');
    std::size_t got = 0;
    while (got < text.size()) {
      const ssize_t n =
          pread(file_, text.data() + got, text.size() - got, begin + static_cast<off_t>(got));
      if (n < 0) give_up("read");
      if (n == 0) break;
      got += static_cast<std::size_t>(n);
    }
    text.resize(got);
    return text;
  }

  // Reads the records that are new into the table. An incomplete one at the end is left out: its
  // writer has died, and the next record overwrites it.
  void read_new_records() {
    const std::string text = read_from(end_);
    std::size_t at = 0;
    std::uint32_t sizes[2];
    while (text.size() - at >= sizeof(sizes)) {
      std::memcpy(sizes, text.data() + at, sizeof(sizes));
      const std::size_t length = sizeof(sizes) + sizes[0] + sizes[1];
      if (text.size() - at < length) break;
      table_.values[text.substr(at + sizeof(sizes), sizes[0])] =
          text.substr(at + sizeof(sizes) + sizes[0], sizes[1]);
      at += length;
    }
    end_ += static_cast<off_t>(at);
  }

  void append(const std::string& text) {
    if (ftruncate(file_, end_) != 0) give_up("truncate");
    std::size_t put = 0;
    while (put < text.size()) {
      const ssize_t n =
          pwrite(file_, text.data() + put, text.size() - put, end_ + static_cast<off_t>(put));
      if (n < 0) give_up("write");
      put += static_cast<std::size_t>(n);
    }
    end_ += static_cast<off_t>(text.size());
  }

  std::string path_;
  int file_ = -1;
  off_t end_ = 0;  // the end of the records that table_ holds
  std::mutex mutex_;
  Table table_;
};

}  // namespace

std::shared_ptr<Store> open_file(const std::string& path, const Member& member) {
  return std::make_shared<FileStore>(path, member);
}

}  // namespace tutti::distributed::rendezvous
