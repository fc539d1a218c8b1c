#include "run_report.h"

#include "../train/trainer.h"
#include "../train/training_data.h"

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/parallel.h>
#include <tutti/core/version.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <numeric>

namespace tutti::examples {

extern const char* const report_template;  // the text of report.html, from CMake

namespace {

using Json = nlohmann::ordered_json;  // writes null for numbers that are not finite

constexpr std::size_t most_points = 400;  // of a curve

// ---- Curves

constexpr std::pair<const char*, double Metrics::*> training_figures[] = {
    {"train_loss", &Metrics::train_loss},
    {"train_accuracy", &Metrics::train_accuracy},
    {"learning_rate", &Metrics::learning_rate},
    {"images_per_second", &Metrics::images_per_second}};

// Returns the rows as columns. Where there are more than a picture has room for, each value is the
// mean of neighbours.
Json columns(const std::vector<Metrics>& rows) {
  const std::size_t group = (rows.size() + most_points - 1) / most_points;
  Json out;
  for (std::size_t begin = 0; begin < rows.size(); begin += group) {
    const std::size_t end = std::min(begin + group, rows.size());
    out["step"].push_back(rows[end - 1].step);
    for (const auto& [name, figure] : training_figures) {
      double sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += rows[i].*figure;
      out[name].push_back(sum / static_cast<double>(end - begin));
    }
  }
  return out;
}

// Returns the means of the last epoch.
Json last_epoch(const std::vector<Metrics>& rows) {
  if (rows.empty()) return {};
  const Metrics means = epoch_means(rows);
  Json out{{"epoch", means.epoch}, {"step", means.step}};
  for (const auto& [name, figure] : training_figures) out[name] = means.*figure;
  return out;
}

Json tests(const std::vector<Metrics>& rows) {
  Json out = Json::array();
  for (const Metrics& row : rows)
    if (row.test_loss && row.test_accuracy)
      out.push_back({{"epoch", row.epoch},
                     {"step", row.step},
                     {"loss", *row.test_loss},
                     {"accuracy", *row.test_accuracy}});
  return out;
}

// ---- The confusion matrix

// Returns the samples of each class, how many of them were recognised, and what was taken for
// something else: the true class, the predicted one and the number of samples.
Json confusion(const Tensor& table) {
  if (!table.defined()) return {{"samples", Json::array()}};
  Json samples, correct, confused = Json::array();
  const std::int64_t classes = table.size(0);
  const std::int64_t* row = table.data<std::int64_t>();  // counts of no class come first
  for (std::int64_t c = 0; c < classes; ++c, row += classes + 1) {
    samples.push_back(std::reduce(row, row + classes + 1));
    correct.push_back(row[c + 1]);
    for (std::int64_t other = 0; other < classes; ++other)
      if (other != c && row[other + 1] > 0)
        confused.push_back(Json::array({c, other, row[other + 1]}));
  }
  return {{"samples", samples}, {"correct", correct}, {"confused", confused}};
}

// ---- Batch normalisation

Json batch_norm(const std::optional<BatchNormCheck>& check) {
  if (!check) return {};
  Json layers = Json::array();
  for (const auto& layer : check->report.layers)
    layers.push_back({{"path", layer.path},
                      {"is_synchronized", layer.is_synchronized},
                      {"channels", layer.channels},
                      {"values_per_batch", layer.values_per_batch},
                      {"evaluation_error", layer.evaluation_error},
                      {"mean_distance", layer.mean_distance},
                      {"variance_ratio", layer.variance_ratio},
                      {"constant", layer.constant.size()},
                      {"silent", layer.silent.size()},
                      {"exploded", layer.exploded.size()},
                      {"farthest_rank",
                       layer.rank_distance.empty() ? 0.0 : std::ranges::max(layer.rank_distance)}});
  return {{"warnings", check->report.warnings},
          {"batches", check->batches},
          {"running_accuracy", check->running.accuracy},
          {"recomputed_accuracy", check->recomputed.accuracy},
          {"layers", std::move(layers)}};
}

// ---- The machine

std::string processor() {
  const std::string key = "model name\t: ";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return line.substr(key.size());
  return "unknown";
}

// Returns what a stranger needs to judge the times of a run, by name.
Json machine_facts(const ProcessGroup& group, Device device) {
  return {{"Ranks", std::to_string(group.size())},
          {"Backend", group.size() > 1 ? group.backend() : "none: one rank"},
          {"Threads of each rank", std::to_string(num_threads())},
          {"Device of rank 0",
           device.is_cpu()
               ? "CPU"
               : fmt::format("{} ({})", to_string(device), cuda::properties(device.index()).name)},
          {"Processor", processor()},
          {"Cores for this process", std::to_string(available_cores())},
          {"Vector instructions", vector_instructions()},
          {"Compiler", compiler()},
          {"tutti", version()}};
}

// Returns the options without the flags, which say the same once more.
Json configuration(const TrainOptions& options) {
  Json all = Json::parse(to_json(options));
  all.erase("flags");
  return all;
}

Json to_json(const RunReport& report) {
  const bool segments = report.options.task == Task::segmentation;
  return {{"title", fmt::format("{} on {}", report.options.model, name_of_data(report.options))},
          {"headline", report.headline},
          {"written", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
          {"epochs", report.length.epochs},
          {"steps", report.length.steps},
          {"last", last_epoch(report.rows)},
          {"rows", columns(report.rows)},
          {"tests", tests(report.rows)},
          {"class_names", report.data.class_names},
          {"test", confusion(report.confusion)},
          {"score", segments ? "mIoU" : "Test accuracy"},
          {"segments", segments},
          {"program", program_name(report.options.task)},
          {"batch_norm", batch_norm(report.batch_norm)},
          {"machine", machine_facts(report.group, report.device)},
          {"resumed", report.resumed},
          {"configuration", configuration(report.options)}};
}

}  // namespace

std::string to_html(const RunReport& report) {
  std::string json;
  // Bytes that are not UTF-8 become U+FFFD. Without the character '<' nothing in the text can end
  // the element that holds it.
  for (const char c : to_json(report).dump(-1, ' ', false, Json::error_handler_t::replace))
    json += c == '<' ? std::string("\\u003c") : std::string(1, c);
  const std::string mark = ">RUN_AS_JSON<";
  std::string page = report_template;
  return page.replace(page.find(mark) + 1, mark.size() - 2, json);
}

}  // namespace tutti::examples
