#include "run_log.h"

#include <fmt/format.h>

namespace tutti::examples {
namespace {

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
      is_rank_0_(is_rank_0),
      first_step_(first_step),
      progress_(is_rank_0 ? screen : nullptr, length, first_step) {}

void RunLog::open(std::vector<Metrics> rows) {
  rows_ = std::move(rows);
  if (!is_rank_0_ || options_.out.empty()) return;
  folder_.emplace(options_.out, rows_);
  folder_->write_config(to_json(options_));
  if (options_.tensorboard) events_.emplace(options_.out, first_step_ + 1);
}

void RunLog::add_row(const Metrics& row) {
  rows_.push_back(row);
  if (folder_) folder_->add(row);
  if (events_) events_->add(row.step, scalars_of(row));
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
