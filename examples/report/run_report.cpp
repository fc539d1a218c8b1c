#include "run_report.h"

#include "../train/network.h"
#include "../train/trainer.h"
#include "../train/training_data.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/memory.h>
#include <tutti/core/parallel.h>
#include <tutti/core/version.h>
#include <tutti/data/transforms/masked.h>
#include <tutti/data/transforms/resize.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <nlohmann/json.hpp>

#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

namespace tutti::examples {

extern const char* const report_template;  // the text of report.html, from CMake

namespace {

using Json = nlohmann::ordered_json;  // writes null for numbers that are not finite

constexpr std::size_t most_points = 400;   // of a curve
constexpr std::int64_t most_pixels = 160;  // of a side of an image

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

// Returns who waited for whom in the last epoch that knows it: with several ranks.
Json stragglers(const std::vector<Metrics>& rows) {
  const auto row = std::find_if(rows.rbegin(), rows.rend(),
                                [](const Metrics& m) { return m.stragglers.has_value(); });
  if (row == rows.rend()) return {};
  return {{"collectives", row->stragglers->collectives},
          {"straggler", row->stragglers->straggler()},
          {"waited_seconds", row->stragglers->waited_seconds},
          {"held_up_seconds", row->stragglers->held_up_seconds},
          {"came_last", row->stragglers->came_last}};
}

// ---- Predictions and the confusion matrix

// Scales an image, or a masked one, down to what the page shows.
Tensor shown_size(const Tensor& image, bool is_masked = false) {
  const std::int64_t longest = std::max(image.size(0), image.size(1));
  const auto scaled = [&](std::int64_t side) {
    return std::max<std::int64_t>(1, side * most_pixels / longest);
  };
  if (longest <= most_pixels) return image.contiguous();
  const std::int64_t height = scaled(image.size(0)), width = scaled(image.size(1));
  return is_masked ? data::resize_masked(image, height, width) : data::resize(image, height, width);
}

// Returns the pixels of an image in base64, row by row.
Json picture(const Tensor& image) {
  const Tensor small = shown_size(image);
  const auto bytes = static_cast<int>(small.numel());
  std::string text(static_cast<std::size_t>((bytes + 2) / 3 * 4 + 1), '\0');  // ends with a NUL
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), small.data<std::uint8_t>(), bytes);
  text.pop_back();
  return {{"width", small.size(1)}, {"height", small.size(0)}, {"pixels", std::move(text)}};
}

Tensor image_or_grey(const data::Dataset& images, std::int64_t index) {
  try {
    return images.get(index).image;
  } catch (const Error&) {  // the file has changed since the test read it
    return full({1, 1, 1}, 128, {.dtype = uint8});
  }
}

Json predictions(const std::vector<Prediction>& chosen, const TrainingData& data) {
  Json out = Json::array();
  for (const Prediction& p : chosen)
    out.push_back({{"index", p.index},
                   {"label", p.label},
                   {"predicted", p.predicted},
                   {"probability", p.probability},
                   {"image", picture(image_or_grey(*data.test, p.index))}});
  return out;
}

// Returns pictures with the true and the predicted class of each pixel; null for classification.
Json segmented(const RunReport& report) {
  if (report.options.task == Task::classification) return {};
  Json out = Json::array();
  for (const auto& [index, predicted] : report.test.segmented) {
    const Tensor masked = image_or_grey(*report.data.test, index), answer = predicted.unsqueeze(2);
    if (masked.size(0) != answer.size(0) || masked.size(1) != answer.size(1) || masked.size(2) < 2)
      continue;  // the file has changed since the test read it
    const Tensor image = data::split_mask(masked).first, with_truth = shown_size(masked, true),
                 with_answer = shown_size(data::join_mask(image, answer), true);
    out.push_back({{"index", index},
                   {"image", picture(data::split_mask(with_truth).first)},
                   {"truth", picture(data::split_mask(with_truth).second)},
                   {"predicted", picture(data::split_mask(with_answer).second)}});
  }
  return out;
}

// Returns what was taken for something else: the true class, the predicted one and the number of
// images. Null where that was not recorded.
Json confused(const TestDetails& test) {
  if (test.confusion.empty()) return {};
  Json out = Json::array();
  for (std::int64_t r = 0; r < test.classes; ++r)
    for (std::int64_t c = 0; c < test.classes; ++c)
      if (r != c && test.count(r, c) > 0) out.push_back(Json::array({r, c, test.count(r, c)}));
  return out;
}

// ---- Times and batch normalisation

Json step_times(const std::vector<StepTimes>& ranks) {
  Json out = Json::array();
  for (const StepTimes& times : ranks)
    out.push_back({{"steps", times.steps}, {"seconds", times.seconds}});
  return out;
}

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

// Returns what follows `key` in the first line of the file that begins with it.
std::string value_in_file(const char* path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(separator);
    if (!line.starts_with(key) || at == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t\"", at + 1),
                      end = line.find_last_not_of(" \t\"");
    return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
  }
  return {};
}

std::string processor(const utsname& system) {
  const std::string name = value_in_file("/proc/cpuinfo", "model name", ':');
  return name.empty() ? std::string(system.machine) : name;
}

std::string memory() {
  const std::string kibibytes = value_in_file("/proc/meminfo", "MemTotal", ':');
  return kibibytes.empty() ? "unknown" : fmt::format("{:.1f} GiB", std::stod(kibibytes) / 0x1p20);
}

std::string name_of(Device device) {
  if (device.is_cpu()) return "CPU";
  return fmt::format("{} ({})", to_string(device), cuda::properties(device.index()).name);
}

// Returns what a stranger needs to judge the times of a run, by name.
Json machine_facts(const ProcessGroup& group, Device device) {
  utsname system{};
  uname(&system);
  const std::string distribution = value_in_file("/etc/os-release", "PRETTY_NAME", '=');
  return {{"Ranks", std::to_string(group.size())},
          {"Backend", group.size() > 1 ? group.backend() : "none: one rank"},
          {"Threads of each rank", std::to_string(num_threads())},
          {"Device of rank 0", name_of(device)},
          {"Processor", processor(system)},
          {"Cores for this process", std::to_string(available_cores())},
          {"Vector instructions", vector_instructions()},
          {"Memory", memory()},
          {"System", fmt::format("{}, Linux {}, {}", distribution, system.release, system.machine)},
          {"Compiler", compiler()},
          {"C library", fmt::format("glibc {}", gnu_get_libc_version())},
          {"tutti", version()}};
}

// Returns the name of a folder of pictures, "folder pets", or of the dataset.
std::string name_of_data(const TrainOptions& o) {
  if (o.dataset != "folder") return o.dataset;
  return "folder " + std::filesystem::absolute(o.data + "/.").parent_path().filename().string();
}

Json to_json(const RunReport& report) {
  const TestDetails& test = report.test;
  return {{"title", fmt::format("{} on {}", report.options.model, name_of_data(report.options))},
          {"headline", report.headline},
          {"written", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
          {"epochs", report.length.epochs},
          {"steps", report.length.steps},
          {"last", last_epoch(report.rows)},
          {"rows", columns(report.rows)},
          {"tests", tests(report.rows)},
          {"class_names", report.data.class_names},
          {"test",
           {{"samples", test.samples},
            {"correct", test.correct},
            {"confused", confused(test)},
            {"wrong", predictions(test.wrong, report.data)},
            {"right", predictions(test.right, report.data)}}},
          {"score", report.options.task == Task::segmentation ? "mIoU" : "Test accuracy"},
          {"segmented", segmented(report)},
          {"program", program_name(report.options.task)},
          {"step_times", step_times(report.step_times)},
          {"on_cuda", report.device.is_cuda()},
          {"stragglers", stragglers(report.rows)},
          {"batch_norm", batch_norm(report.batch_norm)},
          {"machine", machine_facts(report.group, report.device)},
          {"configuration", Json::parse(to_json(report.options))}};
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
