// Interpolation as a differentiable function. The layer nn::Upsample uses it.
#pragma once

#include "../../core/tensor.h"

#include <vector>

namespace tutti::nn {

/// The nearest element, or linear interpolation over one, two or three spatial dimensions.
enum class InterpolateMode { nearest, linear, bilinear, trilinear };

/// The options of interpolate(). Either `size` or `scale_factor` is given, with one number for all
/// spatial dimensions or one for each.
struct InterpolateOptions {
  Dims size = {};
  std::vector<double> scale_factor = {};
  InterpolateMode mode = InterpolateMode::nearest;
  /// Whether the corners of input and output lie on each other, instead of the outer edges of their
  /// corner elements. Not for the nearest element.
  bool align_corners = false;
};

/// Returns x (N, C, ...), over one to three spatial dimensions, with the spatial sizes `size` or
/// floor(scale_factor in). Sizes, positions and weights are those of PyTorch's function of the same
/// name; as there, a given scale_factor sets the positions and not the quotient of the sizes. The
/// result has the layout of x. 16-bit types compute in float32. The gradient of an element is
/// gathered from the outputs that read it, so results have the same bits in every run, on the CPU
/// and on a GPU. Nothing is kept for backward. ShapeError or DTypeError for a tensor that does not
/// fit; ValueError for options that do not.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

/// Returns "nearest", "linear", "bilinear" or "trilinear".
const char* to_string(InterpolateMode mode);

}  // namespace tutti::nn
