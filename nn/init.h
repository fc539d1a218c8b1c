// Initial values: functions that fill a tensor in place, after PyTorch's torch.nn.init. Values are
// drawn in row-major order for every memory format, and do not depend on the number of threads.
// Each layer chooses its scheme itself.
#pragma once

#include "../core/create.h"

namespace tutti::nn::init {

/// The number of inputs (in) or of outputs (out) of a unit. Scaling by `in` keeps the variance of
/// the activations constant from layer to layer, scaling by `out` that of the gradients.
enum class Fan { in, out };

/// Returns size(1) times the receptive field for `in`, size(0) times the receptive field for `out`.
/// ShapeError for a rank below 2.
std::int64_t fan_of(const Tensor& weight, Fan fan);

/// Sets every element to `value`.
void constant_(const Tensor& tensor, double value);
/// Draws from U(low, high). ValueError unless low <= high and both are finite.
void uniform_(const Tensor& tensor, double low = 0, double high = 1,
              Generator& generator = default_generator());
/// Draws from N(mean, std^2). ValueError for a negative or non-finite std.
void normal_(const Tensor& tensor, double mean = 0, double std = 1,
             Generator& generator = default_generator());

/// The options of Kaiming initialisation (He et al., "Delving deep into rectifiers", 2015): std =
/// sqrt(2 / ((1 + slope^2) fan)), where `slope` is that of the leaky ReLU which follows the layer
/// (0: ReLU).
struct Kaiming {
  double slope = 0;
  Fan fan = Fan::in;
};
/// Draws from N(0, std^2) with the std of Kaiming.
void kaiming_normal_(const Tensor& weight, Kaiming options = {},
                     Generator& generator = default_generator());

/// Draws weight and bias from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as PyTorch's linear and
/// convolution layers do. The bias may be undefined.
void default_(const Tensor& weight, const Tensor& bias, Generator& generator = default_generator());

}  // namespace tutti::nn::init
