#include "run_folder.h"

#include "checkpoint.h"

#include <tutti/core/atomic_file.h>
#include <tutti/core/error.h>
#include <tutti/core/excerpt.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace tutti::examples {

namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = ".lock";
constexpr const char* flight_recorders = "flight_recorder.*.jsonl";

// The files of a run, as patterns of fnmatch(). A folder with a result belongs to a run; a file
// that is none is made again at the start, or follows from the results.
struct RunFile {
  const char* pattern;
  bool is_result;
};
constexpr std::array run_files{RunFile{"checkpoint.safetensors", true},
                               RunFile{"checkpoint-epoch-+([0-9]).safetensors", true},
                               RunFile{"best.safetensors", true},
                               RunFile{"model.safetensors", true},
                               RunFile{"metrics.jsonl", true},
                               RunFile{"config.json", false},
                               RunFile{"report.html", false},
                               RunFile{flight_recorders, false},
                               RunFile{lock_name, false}};

const RunFile* find_run_file(const std::string& name) {
  const auto found = std::ranges::find_if(run_files, [&](const RunFile& f) {
    return fnmatch(f.pattern, name.c_str(), FNM_EXTMATCH) == 0;
  });
  return found == run_files.end() ? nullptr : &*found;
}

bool is_disk_error(int error) { return error == ENOSPC || error == EDQUOT || error == EIO; }

[[noreturn]] void fail_to_write(const std::string& folder, int error) {
  if (is_disk_error(error))
    fail<FileError>("cannot write to the run folder {}: {}", folder, std::strerror(error));
  fail<UsageError>("cannot write to the run folder {}: {}; choose another with --out", folder,
                   std::strerror(error));
}

// Returns the regular files of the folder that a run writes, in the order of their names.
std::vector<fs::path> files_of_run(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (is_run_file(entries->path().filename()) && entries->is_regular_file())
      files.push_back(entries->path());
  if (error) fail<UsageError>("cannot read the run folder {}: {}", folder, error.message());
  std::ranges::sort(files);
  return files;
}

// A run that ended before its first row of metrics has left nothing to lose.
bool is_result(const fs::path& file) {
  const RunFile* const kind = find_run_file(file.filename());
  std::error_code ignored;
  return kind && kind->is_result && fs::file_size(file, ignored) > 0;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool is_run_file(const std::string& name) { return find_run_file(name) != nullptr; }

RunFolderLock::RunFolderLock(const TrainOptions& options) : folder_(options.out) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_to_write(folder_, error.value());
  is_of_a_run_ = fs::exists(folder_ + "/" + lock_name, error);
  if (!is_of_a_run_) check_old_run(options);  // a folder that is refused stays without a lock
  lock();
  check_old_run(options);
  remove_dead_drafts(folder_);
}

// The lock file stays when the program ends: a program that removed it could remove the lock that
// another one has just taken.
void RunFolderLock::lock() {
  const std::string path = folder_ + "/" + lock_name;
  file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file_.is_open()) fail_to_write(folder_, errno);
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    std::array<char, 300> owner{};
    const ssize_t size = ::read(file_.get(), owner.data(), owner.size());
    fail<UsageError>(
        "run folder {} is in use by {}; wait until it ends, or choose another folder with --out",
        folder_,
        size > 0 ? excerpt(std::string(owner.data(), static_cast<std::size_t>(size)))
                 : "another program");
  }
  // A file system without locks cannot tell two programs apart. The owner's name only helps the
  // reader of an error, so that it may be missing.
  const std::string owner = fmt::format("process {} of host {}", getpid(), host_name());
  [[maybe_unused]] const bool is_written = ::ftruncate(file_.get(), 0) == 0 &&
                                           ::write(file_.get(), owner.data(), owner.size()) >= 0;
}

void RunFolderLock::check_old_run(const TrainOptions& options) const {
  std::vector<std::string> results;
  for (const fs::path& file : files_of_run(folder_))
    if (is_result(file) || (!is_of_a_run_ && file.filename() != lock_name))
      results.push_back(file.filename());
  if (options.overwrite) refuse_to_remove(options.weights);
  if (results.empty() || options.overwrite) return;
  if (!options.resume)
    fail<UsageError>(
        "run folder {} holds another run ({}): --resume goes on with it, --overwrite replaces it, "
        "--out names another folder",
        folder_, fmt::join(results, ", "));
  std::erase(results, "metrics.jsonl");
  if (!results.empty() && !fs::exists(checkpoint_path(options)))
    fail<UsageError>(
        "run folder {} holds {}, but no checkpoint.safetensors for --resume: --overwrite replaces "
        "them, --out names another folder",
        folder_, fmt::join(results, ", "));
}

// The weights that a new run begins with must not be removed with the old one.
void RunFolderLock::refuse_to_remove(const std::string& weights) const {
  if (weights.empty()) return;
  std::error_code error;  // a file that cannot be found is refused when it is read
  const fs::path file = fs::absolute(weights), folder = fs::canonical(folder_, error);
  for (const fs::path& path :  // the file, and the link to it, if it is one
       {fs::canonical(file, error), fs::canonical(file.parent_path(), error) / file.filename()})
    if (path.parent_path() == folder && is_run_file(path.filename()))
      fail<UsageError>(
          "--overwrite would remove {}, which --weights reads: copy it elsewhere, or choose "
          "another folder with --out",
          weights);
}

void RunFolderLock::remove_flight_recorders() const {
  for (const fs::path& file : files_of_run(folder_)) {
    std::error_code ignored;
    if (fnmatch(flight_recorders, file.filename().c_str(), 0) == 0) fs::remove(file, ignored);
  }
}

void RunFolderLock::remove_old_run() const {
  for (const fs::path& file : files_of_run(folder_)) {
    std::error_code error;
    if (file.filename() != lock_name) fs::remove(file, error);
    if (error) fail<FileError>("cannot remove '{}': {}", file.string(), error.message());
  }
}

}  // namespace tutti::examples
