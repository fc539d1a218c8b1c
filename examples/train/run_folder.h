// The files of a run, and what a person sees of it: RunFolderLock keeps other programs and older
// runs away, Progress shows a bar or plain lines, EventFile writes for TensorBoard, and RunLog
// keeps the rows of metrics, which rank 0 writes into the run folder and onto the screen.
// Checkpoints are checkpoint.h's business.
#pragma once

#include "evaluation.h"
#include "options.h"

#include <tutti/core/file_descriptor.h>
#include <tutti/core/state_dict.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::examples {

/// Returns the name of this host.
std::string host_name();

/// Returns whether the trainer writes files of this name into a run folder.
bool is_run_file(const std::string& name);

class RunFolderLock {
 public:
  /// Makes the folder options.out and locks it until this object is destroyed or the process ends,
  /// and removes the drafts of killed runs. Throws a UsageError of one line
  ///
  /// - where the folder cannot be made or written to (a FileError where that is the disk's fault),
  /// - where another program has locked it,
  /// - where it holds results of another run and `options` ask neither to resume nor to overwrite,
  /// - where options.resume finds weights or kept checkpoints but no checkpoint.safetensors,
  /// - where options.overwrite would remove options.weights.
  explicit RunFolderLock(const TrainOptions& options);

  /// Removes the files of an older run; others stay. Throws a FileError that names the file.
  void remove_old_run() const;
  /// Removes what ranks have written of an older failure. Ignores errors.
  void remove_flight_recorders() const;

 private:
  void lock();
  void check_old_run(const TrainOptions& options) const;
  void refuse_to_remove(const std::string& weights) const;

  std::string folder_;
  FileDescriptor file_;
};

/// Flushes `out`. Throws a FileError if what was printed could not be written.
void flush(std::FILE* out);

class Progress {
 public:
  /// Writes to `out`, which it never closes; null shows nothing. `first_step` steps were made
  /// earlier, by another process. `score` names what a test measures.
  Progress(std::FILE* out, const RunLength& length, std::int64_t first_step,
           std::string score = "test accuracy");

  /// Prints a line that stays.
  void say(const std::string& line);
  /// Shows where training is; to be called after every step. `metrics` holds the figures of the
  /// last row, with the present step and epoch.
  void update(const Metrics& metrics);
  /// Prints the line of an epoch that has ended, with its test results.
  void epoch_done(const Metrics& metrics);

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t step_in_epoch(const Metrics& metrics) const;
  std::string describe(const Metrics& metrics) const;
  std::string time_left(const Metrics& metrics) const;
  std::string bar(const Metrics& metrics, std::int64_t columns) const;

  std::FILE* out_;
  bool terminal_;
  RunLength length_;
  std::int64_t first_step_;
  std::string score_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

/// Returns the CRC-32C (Castagnoli) of the bytes.
std::uint32_t crc32c(std::string_view bytes);

/// Returns the bytes in a record: their number as 64 bits and its checksum, then the bytes and
/// theirs. All numbers are little-endian, and checksums are masked CRC-32Cs.
std::string tfrecord(std::string_view bytes);

/// Scalars over the steps of a run in the form that TensorBoard reads: records of TensorFlow's
/// TFRecord format, each of which holds an Event in the encoding of protobuf.
class EventFile {
 public:
  /// Creates a file in a folder, whose name has the present time and the host, as TensorBoard
  /// expects. `first_step` is the first step that this process makes: what older files of the
  /// folder hold of it and of later steps no longer counts. Throws a FileError if the file cannot
  /// be created.
  EventFile(const std::string& folder, std::int64_t first_step);

  /// Appends scalars of a step. Throws a FileError if they cannot be written.
  void add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::string& path() const { return path_; }

 private:
  void write_event(const std::string& fields);

  std::string path_;
  std::ofstream file_;
};

class RunLog {
 public:
  /// `screen` may be null. A resumed run has made `first_step` steps before.
  RunLog(const TrainOptions& options, bool is_rank_0, std::FILE* screen, const RunLength& length,
         std::int64_t first_step);

  /// Begins with the rows of a resumed run. On rank 0 this opens the run folder (none where
  /// options.out is empty) and writes config.json, so that it is called once nothing of a
  /// checkpoint can be refused any more.
  void open(std::vector<Metrics> rows);
  /// Prints a line that stays on the screen.
  void say(const std::string& line) { progress_.say(line); }
  /// Shows a step that gives no row.
  void show_step(const Metrics& metrics) { progress_.update(metrics); }
  /// Adds a row in the middle of an epoch.
  void add_row(const Metrics& row);
  /// Adds the row that ends an epoch, with test results.
  void add_epoch(const Metrics& row);
  /// Replaces report.html; needs a run folder.
  void write_report(const std::string& html);
  /// Saves the weights of a finished run, and says where everything is.
  void save_weights(const StateDict& state, const Metadata& metadata);

  /// Whether this rank writes a run folder.
  bool has_folder() const { return has_folder_; }
  const std::vector<Metrics>& rows() const { return rows_; }

 private:
  std::string path(const char* name) const;
  void check_metrics() const;

  const TrainOptions& options_;
  const bool has_folder_;
  const std::int64_t first_step_;
  std::vector<Metrics> rows_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;  // with options.tensorboard
  Progress progress_;
};

}  // namespace tutti::examples
