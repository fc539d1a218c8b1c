#include "dataset.h"
#include "flag_values.h"
#include "flags.h"
#include "option_words.h"

#include <tutti/nn/resnet.h>

namespace tutti::examples {

void add_data_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--dataset", o.dataset,
                 fmt::format("What to train on: {}; folder: your own pictures, a class in each "
                             "folder of DIR/train and DIR/val, with --data DIR",
                             fmt::join(dataset_names(), ", ")))
      ->check(one_of(dataset_names()))
      ->capture_default_str();
  app.add_option(
      "--data", o.data,
      "Folder of the data files (default: where Debian or the dataset's archive puts them)");
  app.add_option("--image-size", o.image_size,
                 "With --dataset folder, the pixels of a side that the network sees: of a random "
                 "part of a picture in training, of the centre in tests (default: 224)")
      ->check(positive(4096));
  add_parsed(
      app, "--broken-files",
      [&](const std::string& text) { o.broken_files = broken_files_from_string(text); },
      "With --dataset folder, pictures that cannot be decoded: fatal, or replaced by the next one, "
      "counted and named at the end [fatal]");
  app.add_option("--model", o.model,
                 fmt::format("{}; resnet20 to resnet56 are for small images; with --dataset folder "
                             "the default is resnet18",
                             fmt::join(nn::resnet_names(), ", ")))
      ->check(one_of(nn::resnet_names()))
      ->capture_default_str();
  app.add_flag("--zero-init,!--no-zero-init", o.zero_init,
               "Begin with a weight of 0 in the last normalisation of each residual block, so that "
               "the block passes on its input, or with 1 (the default)");
  app.add_option("--workers", o.workers,
                 "Threads that load images for each rank; 0 loads between the steps")
      ->check(between(0, 256))
      ->capture_default_str();
}

}  // namespace tutti::examples
