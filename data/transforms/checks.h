// The checks of their arguments that the transforms share.
#pragma once

#include "transform.h"

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

}  // namespace tutti::data
