// Changes of brightness, contrast, saturation and hue. Brightness, contrast and saturation are
// those of torchvision on images of Pillow (up to 12), to the bit. The hue is computed in float32,
// as torchvision does for tensors, because PIL's 8-bit hues lose colours.
#pragma once

#include "transform.h"

namespace tutti::data {

/// Scales the brightness of a uint8 image (height, width, channels): 0 is black, 1 the image
/// itself. Throws a ValueError for a negative factor.
Tensor adjust_brightness(const Tensor& image, double factor);
/// Scales the distance of each pixel from the mean grey: 0 is grey, 1 the image itself. Throws a
/// ValueError for a negative factor.
Tensor adjust_contrast(const Tensor& image, double factor);
/// Scales the distance of each pixel from its own grey: 0 is a grey image, 1 the image itself. An
/// image of one channel stays as it is. Throws a ValueError for a negative factor.
Tensor adjust_saturation(const Tensor& image, double factor);
/// Turns the hue by a part of the colour circle. An image of one channel stays as it is. Throws a
/// ValueError for a part outside [-0.5, 0.5].
Tensor adjust_hue(const Tensor& image, double part);

/// Changes brightness, contrast, saturation and hue in random order, as torchvision's class of this
/// name. Images have 1 or 3 channels.
class ColorJitter {
 public:
  struct Options {
    /// Factors are uniform in [max(0, 1 - x), 1 + x].
    double brightness = 0, contrast = 0, saturation = 0;
    double hue = 0;  ///< The part of the circle is uniform in [-x, x].
  };
  /// Throws a ValueError for a negative number, or a hue above 0.5.
  explicit ColorJitter(const Options& options);  // GCC 12.2 passes {x, x, 0, 0} by value wrongly
  Tensor operator()(const Tensor& image, Generator& random) const;

 private:
  Options options_;
};

}  // namespace tutti::data
