// The run folder: metrics.jsonl (one line at a time), config.json, curves.svg and the weights.
// Whole files appear at once or not at all. Only rank 0 has one.
#pragma once

#include <tutti/core/state_dict.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace tutti::examples {

/// A row of metrics.jsonl: training figures since the row before; test figures at the end of an
/// epoch.
struct Metrics {
  std::int64_t epoch = 0;  ///< from 1
  std::int64_t step = 0;   ///< from 1, over all epochs
  double train_loss = 0;
  double train_accuracy = 0;
  double images_per_second = 0;  ///< of training, over all ranks
  double learning_rate = 0;
  std::optional<double> test_loss = {};
  std::optional<double> test_accuracy = {};
  std::optional<distributed::StragglerMonitor::Report> stragglers =
      {};  ///< of the epoch, where there are several ranks
};

class RunFolder {
 public:
  /// Makes the folder and starts new metrics, with the rows of the part of the run that was before.
  /// UsageError where it cannot be written.
  explicit RunFolder(std::string path, std::vector<Metrics> rows = {});
  /// Makes the folder; UsageError where it cannot be made or written to.
  static void prepare(const std::string& path);
  void write_config(const std::string& json);
  void add(const Metrics& metrics);
  void draw_curves();  ///< of all rows so far
  void save_weights(const StateDict& tensors, const Metadata& metadata);
  const std::string& path() const { return path_; }

 private:
  void write_whole(const std::string& name, const std::string& text);

  std::string path_;
  std::ofstream metrics_;
  std::vector<Metrics> rows_;
};

/// Loss and accuracy over the steps, side by side, as an SVG picture.
std::string curves_svg(const std::vector<Metrics>& rows);

}  // namespace tutti::examples
