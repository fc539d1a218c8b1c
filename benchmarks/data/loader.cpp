// Measures how many images a second a DataLoader decodes, crops, scales and normalises: loader DIR
// WORKERS BATCH EPOCHS. It prints one line for each epoch: the images per second. The caller does
// nothing with the batches. run.py compares it with torchvision.
#include <tutti/data/image_folder.h>
#include <tutti/data/loader.h>
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/normalize.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

using namespace tutti;

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s DIR WORKERS BATCH EPOCHS\n", argv[0]);
    return 2;
  }
  const auto images = std::make_shared<data::ImageFolder>(argv[1]);
  data::DataLoader loader(images, {.sampler = {.batch_size = std::atoi(argv[3])},
                                   .transforms = {data::RandomResizedCrop({.size = 224}),
                                                  data::RandomHorizontalFlip(), data::Normalize()},
                                   .workers = std::atoi(argv[2])});
  for (int epoch = 0; epoch < std::atoi(argv[4]); ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    std::int64_t count = 0;
    while (const auto batch = loader.next()) count += batch->images.size(0);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.1f\n", static_cast<double>(count) / seconds.count());
    std::fflush(stdout);
  }
}
