#include "dataset.h"
#include "flag_values.h"
#include "flags.h"

namespace tutti::examples {

void add_data_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--dataset", o.dataset, "What to train on")
      ->check(CLI::IsMember(dataset_names()))
      ->capture_default_str();
  app.add_option(
      "--data", o.data,
      "Folder of the data files (default: where Debian or the dataset's archive puts them)");
  app.add_option("--model", o.model,
                 "resnet20, 32, 44, 56 (for small images), resnet18, 34, 50, 101 or 152")
      ->capture_default_str();
  app.add_option("--workers", o.workers,
                 "Threads that load images for each rank; 0 loads between the steps")
      ->check(between(0, 256))
      ->capture_default_str();
}

}  // namespace tutti::examples
