#include "color_jitter.h"

#include "../../core/create.h"
#include "../grey.h"
#include "checks.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tutti::data {
namespace {

void check_factor(const Tensor& image, double factor, const char* op) {
  check_image(image, op);
  if (image.size(2) != 1 && image.size(2) != 3)
    fail<ShapeError>("{}: expected an image with 1 or 3 channels, got {}", op, image.size(2));
  if (!(factor >= 0 && std::isfinite(factor)))
    fail<ValueError>("{}: expected a factor of at least 0, got {}", op, factor);
}

// Returns from + factor * (to - from), cut to a byte and rounded towards zero, as PIL's blend.
std::uint8_t blend(int from, int to, double factor) {
  const float value = static_cast<float>(from) +
                      static_cast<float>(factor) * static_cast<float>(to - from);
  return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

// Blends every byte of the image with the same number.
Tensor blend_with(int from, const Tensor& image, double factor) {
  std::array<std::uint8_t, 256> table;
  for (int byte = 0; byte < 256; ++byte)
    table[static_cast<std::size_t>(byte)] = blend(from, byte, factor);
  const Tensor result = empty(image.shape(), {.dtype = uint8});
  const std::uint8_t* const in = image.data<std::uint8_t>();
  std::transform(in, in + image.numel(), result.data<std::uint8_t>(),
                 [&](std::uint8_t byte) { return table[byte]; });
  return result;
}

// Returns the mean of the grey image, rounded to an integer as PIL's ImageEnhance.Contrast does.
int mean_grey(const Tensor& image) {
  const std::int64_t channels = image.size(2), count = image.size(0) * image.size(1);
  const std::uint8_t* in = image.data<std::uint8_t>();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i, in += channels) sum += channels == 3 ? grey_of(in) : *in;
  return static_cast<int>(static_cast<double>(sum) / static_cast<double>(count) + 0.5);
}

// Turns the hue of one pixel by `part` of the circle, through the colour space HSV.
void turn_hue(const std::uint8_t* in, float part, std::uint8_t* out) {
  const float r = static_cast<float>(in[0]) / 255, g = static_cast<float>(in[1]) / 255,
              b = static_cast<float>(in[2]) / 255;
  const float value = std::max({r, g, b}), chroma = value - std::min({r, g, b});
  if (chroma == 0) {
    std::copy_n(in, 3, out);
    return;
  }
  const float saturation = chroma / value;
  // The position in the circle, which has six sectors from one pure colour to the next.
  float hue = value == r   ? (g - b) / chroma
              : value == g ? 2 + (b - r) / chroma
                           : 4 + (r - g) / chroma;
  hue = hue / 6 + 1 + part;
  hue = (hue - std::floor(hue)) * 6;
  const int sector = static_cast<int>(hue) % 6;
  const float within = hue - std::floor(hue);
  const float low = value * (1 - saturation), falling = value * (1 - saturation * within),
              rising = value * (1 - saturation * (1 - within));
  const std::array<std::array<float, 3>, 6> colours{{{value, rising, low},
                                                     {falling, value, low},
                                                     {low, value, rising},
                                                     {low, falling, value},
                                                     {rising, low, value},
                                                     {value, low, falling}}};
  for (std::size_t c = 0; c < 3; ++c)
    out[c] = static_cast<std::uint8_t>(colours[static_cast<std::size_t>(sector)][c] * 255.999f);
}

}  // namespace

Tensor adjust_brightness(const Tensor& image, double factor) {
  check_factor(image, factor, "adjust_brightness");
  return blend_with(0, image, factor);
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  check_factor(image, factor, "adjust_contrast");
  return blend_with(mean_grey(image), image, factor);
}

Tensor adjust_saturation(const Tensor& image, double factor) {
  check_factor(image, factor, "adjust_saturation");
  if (image.size(2) == 1) return image;
  const Tensor result = empty(image.shape(), {.dtype = uint8});
  const std::uint8_t* in = image.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
  for (const std::uint8_t* const end = in + image.numel(); in < end; in += 3, out += 3) {
    const int grey = grey_of(in);
    for (int c = 0; c < 3; ++c) out[c] = blend(grey, in[c], factor);
  }
  return result;
}

Tensor adjust_hue(const Tensor& image, double part) {
  if (!(std::abs(part) <= 0.5))
    fail<ValueError>("adjust_hue: expected a part of the circle in [-0.5, 0.5], got {}", part);
  check_factor(image, 1, "adjust_hue");
  if (image.size(2) == 1) return image;
  const Tensor result = empty(image.shape(), {.dtype = uint8});
  const std::uint8_t* in = image.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
  for (const std::uint8_t* const end = in + image.numel(); in < end; in += 3, out += 3)
    turn_hue(in, static_cast<float>(part), out);
  return result;
}

ColorJitter::ColorJitter(const Options& options) : options_(options) {
  const auto check = [](const char* what, double strength) {
    if (!(strength >= 0 && std::isfinite(strength)))
      fail<ValueError>("ColorJitter: expected a {} of at least 0, got {}", what, strength);
  };
  check("brightness", options.brightness);
  check("contrast", options.contrast);
  check("saturation", options.saturation);
  check("hue", options.hue);
  if (options.hue > 0.5)
    fail<ValueError>("ColorJitter: expected a hue of at most 0.5, got {}", options.hue);
}

Tensor ColorJitter::operator()(const Tensor& image, Generator& random) const {
  const std::vector<std::int64_t> order = random.permutation(4);
  const auto draw_factor = [&](double strength) {
    return random.uniform(std::max(0.0, 1 - strength), 1 + strength);
  };
  const double brightness = draw_factor(options_.brightness),
               contrast = draw_factor(options_.contrast),
               saturation = draw_factor(options_.saturation),
               hue = random.uniform(-options_.hue, options_.hue);
  Tensor result = image;
  for (const std::int64_t step : order) {
    if (step == 0 && options_.brightness > 0) result = adjust_brightness(result, brightness);
    if (step == 1 && options_.contrast > 0) result = adjust_contrast(result, contrast);
    if (step == 2 && options_.saturation > 0) result = adjust_saturation(result, saturation);
    if (step == 3 && options_.hue > 0) result = adjust_hue(result, hue);
  }
  return result;
}

}  // namespace tutti::data
