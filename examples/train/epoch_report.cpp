#include "epoch_report.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/parallel.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti::examples {
namespace {

Tensor image_or_grey(const data::Dataset& data, std::int64_t index) {
  try {
    return data.get(index).image;
  } catch (const Error&) {  // the file has changed since the test read it
    return full({1, 1, 1}, 128, {.dtype = uint8});
  }
}

std::vector<Tensor> images_of(const std::vector<Prediction>& predictions,
                              const data::Dataset& data) {
  std::vector<Tensor> images;
  for (const Prediction& p : predictions) images.push_back(image_or_grey(data, p.index));
  return images;
}

// The options of the run, named as in config.json.
Facts configuration(const TrainOptions& options) {
  Facts facts;
  const auto json = nlohmann::ordered_json::parse(to_json(options));
  for (const auto& [name, value] : json.items())
    facts.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  return facts;
}

std::string name_of(Device device) {
  if (device.is_cpu()) return "CPU";
  return fmt::format("{} ({})", to_string(device), cuda::properties(device.index()).name);
}

Facts placement(const ReportSource& run) {
  return {{"Ranks", std::to_string(run.group.size())},
          {"Backend", run.group.size() > 1 ? run.group.backend() : "none: one rank"},
          {"Threads of each rank", std::to_string(num_threads())},
          {"Device of rank 0", name_of(run.device)}};
}

}  // namespace

RunReport make_report(const ReportSource& run, TestDetails test,
                      std::vector<StepTimes> step_times) {
  Facts machine = placement(run);
  const Facts host = machine_facts();
  machine.insert(machine.end(), host.begin(), host.end());
  return {.title = fmt::format("{} on {}", run.options.model, run.options.dataset),
          .headline = run.headline,
          .length = run.length,
          .rows = run.rows,
          .class_names = run.data.class_names,
          .wrong_images = images_of(test.wrong, *run.data.test),
          .right_images = images_of(test.right, *run.data.test),
          .test = std::move(test),
          .step_times = std::move(step_times),
          .on_cuda = run.device.is_cuda(),
          .configuration = configuration(run.options),
          .machine = std::move(machine)};
}

}  // namespace tutti::examples
