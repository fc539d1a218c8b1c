// The files of a run's folder by their names: RunFolderLock keeps other programs and older runs
// away from it. What is written into the folder is run_log.h's and checkpoint.h's business.
#pragma once

#include "options.h"

#include <tutti/core/file_descriptor.h>

#include <string>

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
  /// - where it holds results of another run, or in a folder that no run has used files of the
  ///   same names, and `options` ask neither to resume nor to overwrite,
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
  bool is_of_a_run_ = false;  // else files with the names of a run's are somebody else's
};

}  // namespace tutti::examples
