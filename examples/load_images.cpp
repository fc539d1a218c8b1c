// Reads a folder of pictures, DIR/CLASS/*.jpg, as the batches of one epoch of training, and says
// how long it waited for them: load_images DIR
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr,
                 "usage: load_images DIR, where the pictures are DIR/CLASS/*.jpg or *.png\n");
    return 2;
  }
  const std::string folder = argv[1];
  // [snippet]
  const auto images = std::make_shared<data::ImageFolder>(folder);
  const auto classes = static_cast<std::int64_t>(images->class_names().size());
  data::DataLoader loader(
      images, {.sampler = {.batch_size = 32, .seed = 1},
               .transforms = {data::RandomResizedCrop({.size = 64}), data::RandomHorizontalFlip(),
                              data::Normalize({.format = MemoryFormat::channels_last})},
               .batch_transforms = {data::SoftLabels({.classes = classes, .smoothing = 0.1}),
                                    data::MixUp(0.2)},
               .workers = 2});
  std::int64_t count = 0;
  while (const auto batch = loader.next()) {
    // Here a program would train with batch->images and batch->soft_labels.
    count += batch->images.size(0);
  }
  // [/snippet]
  std::printf("%lld images of %lld classes, waited %.2f s for them\n",
              static_cast<long long>(count), static_cast<long long>(classes),
              loader.waited().count());
  return count == images->size() ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "load_images: %s\n", error.what());
  return 1;
}
