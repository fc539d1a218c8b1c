// RunFolder: the files of a run: metrics.jsonl, which grows by a line at a time, config.json,
// report.html and model.safetensors. Each of the last three appears as a whole or not at all. What
// cannot be written is a FileError. Only rank 0 has a run folder. Checkpoints are checkpoint.h's
// business, and whether the folder may be written to at all is run_folder_lock.h's.
#pragma once

#include <tutti/core/state_dict.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace tutti::examples {

/// A row of metrics.jsonl: the training figures since the row before, and test figures at the end
/// of an epoch.
struct Metrics {
  std::int64_t epoch = 0;  ///< Counted from 1.
  std::int64_t step = 0;   ///< Counted from 1, over all epochs.
  double train_loss = 0;
  double train_accuracy = 0;
  double images_per_second = 0;  ///< Training images of all ranks; evaluation does not count.
  double learning_rate = 0;
  double data_waiting = 0;  ///< the part of the time in which rank 0 waited for training images
  std::optional<double> test_loss = {};
  std::optional<double> test_accuracy = {};
  /// What the ranks waited for in the epoch; only in its last row, where there are several ranks.
  std::optional<distributed::StragglerMonitor::Report> stragglers = {};
};

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

}  // namespace tutti::examples
