#include "run_log.h"

#include <tutti/core/atomic_file.h>
#include <tutti/core/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

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

}  // namespace tutti::examples
