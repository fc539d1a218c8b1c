// What the transforms share: checks of their arguments, and the draw of a rectangle's size.
#pragma once

#include "transform.h"

#include <utility>

namespace tutti::data {

/// Throws a ShapeError, DTypeError or DeviceError that names `op` unless `image` is uint8 (height,
/// width, channels) with 1 to 4 channels and no empty side, contiguous, on the CPU.
void check_image(const Tensor& image, const char* op);

/// Throws a ValueError that names `op` and `what` unless least <= low <= high, both finite.
void check_range(double low, double high, double least, const char* op, const char* what);

/// Throws a ValueError that names `op` unless `p` is a probability.
void check_probability(double p, const char* op);

/// Throws a ValueError that names `op` unless `box` lies in an image of height x width pixels; an
/// empty box may.
void check_box(const Box& box, std::int64_t height, std::int64_t width, const char* op);

/// Draws the height and width of a rectangle whose area is a uniform part, within `scale`, of that
/// of height x width, and whose ratio of width to height is log-uniform within `ratio`. The result
/// may be larger than the image, and it has no position.
Box draw_box_size(std::int64_t height, std::int64_t width, const std::pair<double, double>& scale,
                  const std::pair<double, double>& ratio, Generator& random);

}  // namespace tutti::data
