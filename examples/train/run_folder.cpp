#include "run_folder.h"

#include "checkpoint.h"

#include <tutti/core/atomic_file.h>
#include <tutti/core/error.h>
#include <tutti/core/excerpt.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
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
constexpr std::array run_files{
    RunFile{"checkpoint.safetensors", true}, RunFile{"checkpoint-epoch-+([0-9]).safetensors", true},
    RunFile{"best.safetensors", true},       RunFile{"model.safetensors", true},
    RunFile{"metrics.jsonl", true},          RunFile{"config.json", false},
    RunFile{"report.html", false},           RunFile{"events.out.tfevents.*", false},
    RunFile{flight_recorders, false},        RunFile{lock_name, false}};

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
    if (is_result(file)) results.push_back(file.filename());
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

// ---- progress

namespace {

int columns_of(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Returns whether an MPI launcher started this process. Open MPI gives its processes a
// pseudo-terminal and passes on what they write, so that a bar would become one endless line.
bool is_launched() {
  constexpr std::array variables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  return std::ranges::any_of(variables, [](const char* name) { return std::getenv(name); });
}

// Returns whether the line on the screen can be rewritten.
bool is_terminal(std::FILE* out) {
  const char* const kind = std::getenv("TERM");
  return out && isatty(fileno(out)) && !is_launched() &&
         std::string_view(kind ? kind : "") != "dumb";
}

}  // namespace

void flush(std::FILE* out) {
  if (std::fflush(out) == 0 && !std::ferror(out)) return;
  const int error = errno;
  if ((error == EPIPE || error == EIO) && std::freopen("/dev/null", "w", out)) {
    std::fputs("the trainer: nobody reads what it prints any more, so it goes on in silence\n",
               stderr);
    return;
  }
  fail<FileError>("cannot write to {}: {}", out == stdout ? "standard output" : "the screen",
                  std::strerror(error));
}

Progress::Progress(std::FILE* out, const RunLength& length, std::int64_t first_step,
                   std::string score)
    : out_(out),
      terminal_(is_terminal(out)),
      length_(length),
      first_step_(first_step),
      score_(std::move(score)) {}

void Progress::say(const std::string& line) {
  if (!out_) return;
  std::fputs(((terminal_ ? "\r\033[K" : "") + line + "\n").c_str(), out_);
  flush(out_);
}

void Progress::update(const Metrics& m) {
  if (!out_) return;
  const auto now = Clock::now();
  if (now - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10)))
    return;
  shown_ = now;
  const std::string head = fmt::format("epoch {}/{}  ", m.epoch, length_.epochs),
                    figures = describe(m);
  if (!terminal_) return say(head + figures);
  const std::int64_t columns = columns_of(out_);
  const auto used = static_cast<std::int64_t>(head.size() + figures.size());
  // A line that is longer than the terminal could not be taken back by a carriage return.
  const std::string line = (head + bar(m, columns - 5 - used) + figures)
                               .substr(0, static_cast<std::size_t>(columns - 1));
  std::fputs(("\r\033[K" + line).c_str(), out_);
  flush(out_);
}

void Progress::epoch_done(const Metrics& m) {
  say(fmt::format("epoch {}/{}  means of the epoch: {}  test loss {:.4f}  {} {:.4f}", m.epoch,
                  length_.epochs, describe(m), m.test_loss.value_or(0), score_,
                  m.test_accuracy.value_or(0)));
}

std::int64_t Progress::step_in_epoch(const Metrics& m) const {
  return m.step - (m.epoch - 1) * length_.steps_per_epoch;
}

std::string Progress::describe(const Metrics& m) const {
  const std::string step = fmt::format("step {}/{}", step_in_epoch(m), length_.steps_per_epoch);
  if (m.images_per_second == 0) return step;  // there is no row yet
  return fmt::format("{}  loss {:.4f}  accuracy {:.4f}  data {:.1f}%  {:.0f} images/s  {} left",
                     step, m.train_loss, m.train_accuracy, 100 * m.data_waiting,
                     m.images_per_second, time_left(m));
}

std::string Progress::time_left(const Metrics& m) const {
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const double per_step = spent /
                          static_cast<double>(std::max<std::int64_t>(m.step - first_step_, 1));
  const auto left =
      static_cast<std::int64_t>(per_step * static_cast<double>(length_.steps - m.step) + 0.5);
  return left < 3600 ? fmt::format("{}:{:02}", left / 60, left % 60)
                     : fmt::format("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
}

// Returns a bar of at most 40 columns; nothing where there is too little room for one.
std::string Progress::bar(const Metrics& m, std::int64_t columns) const {
  if (columns < 5) return {};
  const std::int64_t size = std::min<std::int64_t>(columns, 40);
  const auto done = static_cast<std::size_t>(size * step_in_epoch(m) / length_.steps_per_epoch);
  return fmt::format("[{:.<{}}]  ", std::string(done, '#'), size);
}

// ---- run log

namespace {

// Adds who waited for whom: lists with one number for each rank, and the skew of each gradient
// bucket.
void add_straggler_report(nlohmann::ordered_json& row,
                          const distributed::StragglerMonitor::Report& report) {
  row["straggler"] = report.straggler();
  row["held_up_s"] = report.held_up_seconds;
  row["came_last"] = report.came_last;
  row["waited_s"] = report.waited_seconds;
  for (const auto& skew : report.skews)
    if (skew.name.starts_with("bucket "))
      row["skew_ms"][skew.name] = {{"calls", skew.calls},
                                   {"mean", 1e3 * skew.mean_seconds},
                                   {"largest", 1e3 * skew.largest_seconds}};
}

std::string line_of(const Metrics& m, const char* score) {
  nlohmann::ordered_json row{{"epoch", m.epoch},
                             {"step", m.step},
                             {"train_loss", m.train_loss},
                             {"train_accuracy", m.train_accuracy},
                             {"images_per_second", m.images_per_second},
                             {"learning_rate", m.learning_rate},
                             {"data_waiting", m.data_waiting}};
  if (m.test_loss) row["test_loss"] = *m.test_loss;
  if (m.test_accuracy) row[score] = *m.test_accuracy;
  if (m.stragglers) add_straggler_report(row, *m.stragglers);
  return row.dump() + "\n";
}

// TensorBoard draws tags with the same beginning beside each other.
std::vector<std::pair<std::string, double>> scalars_of(const Metrics& m) {
  std::vector<std::pair<std::string, double>> scalars{{"loss/train", m.train_loss},
                                                      {"accuracy/train", m.train_accuracy},
                                                      {"learning_rate", m.learning_rate},
                                                      {"images_per_second", m.images_per_second}};
  if (m.test_loss) scalars.emplace_back("loss/test", *m.test_loss);
  if (m.test_accuracy) scalars.emplace_back("accuracy/test", *m.test_accuracy);
  return scalars;
}

}  // namespace

RunLog::RunLog(const TrainOptions& options, bool is_rank_0, std::FILE* screen,
               const RunLength& length, std::int64_t first_step)
    : options_(options),
      has_folder_(is_rank_0 && !options.out.empty()),
      first_step_(first_step),
      progress_(is_rank_0 ? screen : nullptr, length, first_step, score_name(options)) {}

void RunLog::open(std::vector<Metrics> rows) {
  rows_ = std::move(rows);
  if (!has_folder_) return;
  std::error_code ignored;  // The first file that cannot be written says why.
  std::filesystem::create_directories(options_.out, ignored);
  // Lines that are there already stay as they are, since they hold more than a checkpoint does.
  // Those of steps after the checkpoint go: the steps are made again.
  std::ifstream old(path("metrics.jsonl"));
  std::string lines;
  for (const Metrics& m : rows_) {
    std::string line;
    lines += std::getline(old, line) && !old.eof() ? line + "\n" : line_of(m, score_key(options_));
  }
  write_file_atomically(path("metrics.jsonl"), lines);
  metrics_.open(path("metrics.jsonl"), std::ios::app);
  check_metrics();
  write_file_atomically(path("config.json"), to_json(options_));
  if (options_.tensorboard) events_.emplace(options_.out, first_step_ + 1);
}

std::string RunLog::path(const char* name) const { return options_.out + "/" + name; }

void RunLog::check_metrics() const {
  if (!metrics_)
    fail<FileError>("cannot write '{}': {}", path("metrics.jsonl"), std::strerror(errno));
}

void RunLog::add_row(const Metrics& row) {
  rows_.push_back(row);
  if (!has_folder_) return;
  metrics_ << line_of(row, score_key(options_)) << std::flush;
  check_metrics();
  if (events_) events_->add(row.step, scalars_of(row));
}

void RunLog::add_epoch(const Metrics& row) {
  add_row(row);
  progress_.epoch_done(epoch_means(rows_));
}

void RunLog::write_report(const std::string& html) {
  write_file_atomically(path("report.html"), html);
}

void RunLog::save_weights(const StateDict& state, const Metadata& metadata) {
  if (!has_folder_) return;
  save_safetensors(path("model.safetensors"), state, metadata);
  say(fmt::format(
      "metrics  {0}/metrics.jsonl\nweights  {0}/model.safetensors\nreport   {0}/report.html",
      options_.out));
}

namespace {

// ---- event files: TFRecord

template <class Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

// A checksum of data that contain checksums is weak, so TFRecord stores them rotated and shifted.
std::string masked_checksum(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u);
}

// ---- protobuf: a field is a key, which holds its number and how it is encoded, and a value. The
// numbers are those of TensorFlow's event.proto and summary.proto.

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}

std::string field(int number, std::int64_t value) {
  return varint(number << 3) + varint(static_cast<std::uint64_t>(value));
}
std::string field(int number, double value) {
  return varint(number << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string field(int number, float value) {
  return varint(number << 3 | 5) + little_endian(std::bit_cast<std::uint32_t>(value));
}
std::string field(int number, const std::string& value) {
  return varint(number << 3 | 2) + varint(value.size()) + value;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns a path that no file has yet.
std::string new_path(const std::string& folder) {
  auto time = static_cast<std::int64_t>(seconds_since_1970());
  for (;; ++time) {
    const std::string path = fmt::format("{}/events.out.tfevents.{}.{}", folder, time, host_name());
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

std::string tfrecord(std::string_view bytes) {
  const std::string length = little_endian(static_cast<std::uint64_t>(bytes.size()));
  return length + masked_checksum(length) + std::string(bytes) + masked_checksum(bytes);
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step)
    : path_(new_path(folder)), file_(path_, std::ios::binary) {
  write_event(field(3, "brain.Event:2"));               // file_version
  const std::string start = field(1, std::int64_t{1});  // status: START
  write_event(field(2, first_step) + field(7, start));  // step, session_log
}

void EventFile::add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string values;
  for (const auto& [tag, number] : scalars)
    values += field(1, field(1, tag) + field(2, static_cast<float>(number)));  // tag, simple_value
  write_event(field(2, step) + field(5, values));                              // step, summary
}

void EventFile::write_event(const std::string& fields) {
  const std::string wall_time = field(1, seconds_since_1970());
  file_ << tfrecord(wall_time + fields) << std::flush;
  if (!file_) fail<FileError>("cannot write '{}': {}", path_, std::strerror(errno));
}

}  // namespace tutti::examples
