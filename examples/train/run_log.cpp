#include "run_log.h"

#include <fmt/format.h>

namespace tutti::examples {

RunLog::RunLog(const TrainOptions& options, bool is_rank_0, std::FILE* screen,
               const RunLength& length, std::int64_t first_step)
    : options_(options),
      is_rank_0_(is_rank_0),
      progress_(is_rank_0 ? screen : nullptr, length, first_step) {}

void RunLog::open(std::vector<Metrics> rows) {
  rows_ = std::move(rows);
  if (!is_rank_0_ || options_.out.empty()) return;
  folder_.emplace(options_.out, rows_);
  folder_->write_config(to_json(options_));
}

void RunLog::add_row(const Metrics& row) {
  rows_.push_back(row);
  if (folder_) folder_->add(row);
}

void RunLog::add_epoch(const Metrics& row) {
  add_row(row);
  progress_.epoch_done(row);
}

void RunLog::save_weights(const StateDict& state, const Metadata& metadata) {
  if (!folder_) return;
  folder_->save_weights(state, metadata);
  say(fmt::format(
      "metrics  {0}/metrics.jsonl\nweights  {0}/model.safetensors\nreport   {0}/report.html",
      folder_->path()));
}

}  // namespace tutti::examples
