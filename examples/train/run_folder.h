// The files of a run: metrics.jsonl, config.json, report.html and model.safetensors, and the lock
// by which one program at a time writes into a run folder. Only rank 0 has one. Checkpoints are
// checkpoint.h's business.
#pragma once

#include "metrics.h"
#include "options.h"

#include <tutti/core/file_descriptor.h>
#include <tutti/core/state_dict.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace tutti::examples {

class RunFolder {
 public:
  /// Makes the folder and begins metrics.jsonl with `rows`, those that a resumed run has already.
  /// Throws a FileError where metrics.jsonl cannot be written.
  RunFolder(std::string path, const std::vector<Metrics>& rows);
  void write_config(const std::string& json);
  /// Appends a line to metrics.jsonl.
  void add(const Metrics& metrics);
  void write_report(const std::string& html);
  void save_weights(const StateDict& tensors, const Metadata& metadata);
  const std::string& path() const { return path_; }

 private:
  void write_whole(const std::string& name, const std::string& text);
  void check_metrics() const;

  std::string path_;
  std::ofstream metrics_;
};

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

}  // namespace tutti::examples
