#include "flag_values.h"
#include "flags.h"

namespace tutti::examples {

void add_augmentation_flags(CLI::App& app, TrainOptions& o) {
  AugmentationOptions& a = o.augmentation;
  app.add_option("--label-smoothing", a.label_smoothing,
                 "Share of the labels that all classes get alike, in training; 0 for none")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--mixup", a.mixup,
                 "Blend training images and their labels in pairs, with weights of the "
                 "distribution Beta(ALPHA, ALPHA); 0 for not; with --cutmix each of the two does "
                 "half of the batches")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--cutmix", a.cutmix,
                 "Paste rectangles between training images, of areas of the distribution "
                 "Beta(ALPHA, ALPHA); 0 for not")
      ->check(not_negative())
      ->capture_default_str();
}

}  // namespace tutti::examples
