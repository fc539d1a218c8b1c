#include "run_folder.h"

#include <tutti/core/atomic_file.h>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tutti::examples {
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

std::string line_of(const Metrics& m) {
  nlohmann::ordered_json row{{"epoch", m.epoch},
                             {"step", m.step},
                             {"train_loss", m.train_loss},
                             {"train_accuracy", m.train_accuracy},
                             {"images_per_second", m.images_per_second},
                             {"learning_rate", m.learning_rate},
                             {"data_waiting", m.data_waiting}};
  if (m.test_loss) row["test_loss"] = *m.test_loss;
  if (m.test_accuracy) row["test_accuracy"] = *m.test_accuracy;
  if (m.stragglers) add_straggler_report(row, *m.stragglers);
  return row.dump() + "\n";
}

}  // namespace

RunFolder::RunFolder(std::string path, const std::vector<Metrics>& rows) : path_(std::move(path)) {
  std::error_code ignored;  // The first file that cannot be written says why.
  std::filesystem::create_directories(path_, ignored);
  // Lines that are there already stay as they are, since they hold more than a checkpoint does.
  // Those of steps after the checkpoint go: the steps are made again.
  std::ifstream old(path_ + "/metrics.jsonl");
  std::string lines;
  for (const Metrics& m : rows) {
    std::string line;
    lines += std::getline(old, line) && !old.eof() ? line + "\n" : line_of(m);
  }
  write_whole("metrics.jsonl", lines);
  metrics_.open(path_ + "/metrics.jsonl", std::ios::app);
  check_metrics();
}

void RunFolder::write_config(const std::string& json) { write_whole("config.json", json); }

void RunFolder::add(const Metrics& m) {
  metrics_ << line_of(m) << std::flush;
  check_metrics();
}

void RunFolder::check_metrics() const {
  if (!metrics_)
    fail<FileError>("cannot write '{}/metrics.jsonl': {}", path_, std::strerror(errno));
}

void RunFolder::write_report(const std::string& html) { write_whole("report.html", html); }

void RunFolder::save_weights(const StateDict& tensors, const Metadata& metadata) {
  save_safetensors(path_ + "/model.safetensors", tensors, metadata);
}

void RunFolder::write_whole(const std::string& name, const std::string& text) {
  tutti::write_file_atomically(path_ + "/" + name, text);
}

}  // namespace tutti::examples
