#include "run_log.h"

#include <tutti/core/atomic_file.h>
#include <tutti/core/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tutti::examples {

namespace {

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
  return row.dump() + "\n";
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

RunLog::RunLog(const TrainOptions& options, bool is_rank_0, std::FILE* screen,
               const RunLength& length, std::int64_t first_step)
    : options_(options),
      has_folder_(is_rank_0 && !options.out.empty()),
      screen_(is_rank_0 ? screen : nullptr),
      length_(length),
      counted_from_(first_step) {}

void RunLog::open(std::vector<Metrics> rows) {
  rows_ = std::move(rows);
  if (!has_folder_) return;
  std::error_code ignored;  // The first file that cannot be written says why.
  std::filesystem::create_directories(options_.out, ignored);
  std::string lines;  // of steps after the checkpoint, which are made again, there are none
  for (const Metrics& m : rows_) lines += line_of(m, score_key(options_));
  write_file_atomically(path("metrics.jsonl"), lines);
  metrics_.open(path("metrics.jsonl"), std::ios::app);
  check_metrics();
  write_file_atomically(path("config.json"), to_json(options_));
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
}

void RunLog::add_epoch(const Metrics& row) {
  add_row(row);
  const Metrics m = epoch_means(rows_);
  say(fmt::format("epoch {}/{}  means of the epoch: {}  test loss {:.4f}  {} {:.4f}", m.epoch,
                  length_.epochs, describe(m), m.test_loss.value_or(0), score_name(options_),
                  m.test_accuracy.value_or(0)));
}

void RunLog::say(const std::string& line) {
  if (!screen_) return;
  std::fputs((line + "\n").c_str(), screen_);
  flush(screen_);
}

// What comes before the first step, which is itself slower than the others, says nothing about the
// time of the others.
void RunLog::show_step(const Metrics& m) {
  const auto now = Clock::now();
  if (!std::exchange(has_step_, true)) {
    counted_since_ = now;
    counted_from_ = m.step;
  }
  if (now - shown_ < std::chrono::seconds(10)) return;
  shown_ = now;
  say(fmt::format("epoch {}/{}  {}", m.epoch, length_.epochs, describe(m)));
}

std::string RunLog::describe(const Metrics& m) const {
  const std::string step = fmt::format(
      "step {}/{}", m.step - (m.epoch - 1) * length_.steps_per_epoch, length_.steps_per_epoch);
  if (m.images_per_second == 0) return step;  // there is no row yet
  const std::chrono::duration<double> spent = Clock::now() - counted_since_;
  const std::int64_t steps = std::max<std::int64_t>(m.step - counted_from_, 1);
  const auto left = std::llround(spent.count() * static_cast<double>(length_.steps - m.step) /
                                 static_cast<double>(steps));
  return fmt::format(
      "{}  loss {:.4f}  accuracy {:.4f}  data {:.1f}%  {:.0f} images/s  {}:{:02}:{:02} left", step,
      m.train_loss, m.train_accuracy, 100 * m.data_waiting, m.images_per_second, left / 3600,
      left / 60 % 60, left % 60);
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
