#include "resize.h"

#include "../../core/create.h"
#include "checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace tutti::data {
namespace {

// Weights are integers of 2^-22, so that a sum of products with bytes fits into 32 bits.
constexpr int fraction_bits = 22;
constexpr std::int32_t half = 1 << (fraction_bits - 1);

// An image of one row may claim any length within the limit of decoding (DecodeOptions), and would
// grow with the square of the size.
constexpr double most_scaled_pixels = 178'956'970;

// The weights of the input pixels that make each output pixel of a row or a column.
struct Weights {
  struct Taps {
    std::int64_t first = 0;  // the first input pixel
    std::int64_t count = 0;
  };
  std::vector<Taps> taps;
  std::vector<std::int32_t> values;
  std::int64_t most = 0;  // the weights of output i begin at values[most * i]

  const std::int32_t* of(std::int64_t output) const { return values.data() + most * output; }
};

Weights make_weights(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to),
               stretch = std::max(scale, 1.0);
  Weights weights;
  weights.most = static_cast<std::int64_t>(std::ceil(stretch)) * 2 + 1;
  weights.values.resize(static_cast<std::size_t>(weights.most * to));
  std::vector<double> exact(static_cast<std::size_t>(weights.most));
  for (std::int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - stretch + 0.5));
    const auto end = std::min(from, static_cast<std::int64_t>(center + stretch + 0.5));
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x)
      sum += exact[static_cast<std::size_t>(x - first)] =
          std::max(0.0, 1 - std::abs(static_cast<double>(x) - center + 0.5) / stretch);
    std::int32_t* const values = weights.values.data() + weights.most * i;
    for (std::int64_t x = 0; x < end - first; ++x) {
      const double value = exact[static_cast<std::size_t>(x)] / sum * (1 << fraction_bits);
      values[x] = static_cast<std::int32_t>(value + 0.5);
    }
    weights.taps.push_back({first, end - first});
  }
  return weights;
}

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> fraction_bits, 0, 255));
}

// A pixel of up to 4 channels as one vector of the processor.
typedef std::int32_t Lanes __attribute__((vector_size(16)));
typedef std::uint8_t Pixel __attribute__((vector_size(4)));

// Scales one row. The pixels of `row` are 4 bytes each, those of `out` `channels` bytes.
void scale_row(const std::uint8_t* row, const Weights& weights, std::int64_t channels,
               std::uint8_t* out) {
  for (std::size_t i = 0; i < weights.taps.size(); ++i, out += channels) {
    const auto [first, count] = weights.taps[i];
    const std::int32_t* const values = weights.of(static_cast<std::int64_t>(i));
    Lanes sum{half, half, half, half};
    for (std::int64_t t = 0; t < count; ++t) {
      Pixel pixel;
      std::memcpy(&pixel, row + 4 * (first + t), sizeof(pixel));
      sum += __builtin_convertvector(pixel, Lanes) * values[t];
    }
    for (std::int64_t c = 0; c < channels; ++c) out[c] = to_byte(sum[c]);
  }
}

// Returns `box` of the image, scaled to `width` pixels a row.
Tensor scale_rows(const Tensor& image, const Box& box, std::int64_t width) {
  const std::int64_t channels = image.size(2), row_bytes = image.size(1) * channels;
  const Weights weights = make_weights(box.width, width);
  const Tensor result = empty({box.height, width, channels}, {.dtype = uint8});
  std::vector<std::uint8_t> row(static_cast<std::size_t>(4 * box.width));
  for (std::int64_t y = 0; y < box.height; ++y) {
    const std::uint8_t* const from = image.data<std::uint8_t>() + (box.top + y) * row_bytes +
                                     box.left * channels;
    for (std::int64_t x = 0; x < box.width; ++x)
      std::copy_n(from + x * channels, channels, row.data() + 4 * x);
    scale_row(row.data(), weights, channels, result.data<std::uint8_t>() + y * width * channels);
  }
  return result;
}

// Sets `out` to the weighted sum of rows that begin `row_bytes` apart.
void sum_rows(const std::uint8_t* rows, std::int64_t row_bytes, const std::int32_t* weights,
              std::int64_t count, std::uint8_t* out) {
  constexpr std::int64_t block = 256;
  std::int32_t sums[block];
  for (std::int64_t begin = 0; begin < row_bytes; begin += block) {
    const std::int64_t n = std::min(block, row_bytes - begin);
    std::fill_n(sums, n, half);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::uint8_t* const row = rows + t * row_bytes + begin;
      const std::int32_t weight = weights[t];
      for (std::int64_t i = 0; i < n; ++i) sums[i] += row[i] * weight;
    }
    for (std::int64_t i = 0; i < n; ++i) out[begin + i] = to_byte(sums[i]);
  }
}

// Returns the rows `top` to `top` + `rows` of an image, scaled to `height` rows.
Tensor scale_columns(const Tensor& image, std::int64_t top, std::int64_t rows,
                     std::int64_t height) {
  const std::int64_t row_bytes = image.size(1) * image.size(2);
  const Weights weights = make_weights(rows, height);
  const Tensor result = empty({height, image.size(1), image.size(2)}, {.dtype = uint8});
  for (std::int64_t y = 0; y < height; ++y) {
    const auto [first, count] = weights.taps[static_cast<std::size_t>(y)];
    sum_rows(image.data<std::uint8_t>() + (top + first) * row_bytes, row_bytes, weights.of(y),
             count, result.data<std::uint8_t>() + y * row_bytes);
  }
  return result;
}

void check_arguments(const Tensor& image, std::int64_t height, std::int64_t width, const Box& box) {
  check_image(image, "resize");
  if (height < 1 || width < 1)
    fail<ValueError>("resize: expected a size of at least 1 x 1, got {} x {}", height, width);
  check_box(box, image.size(0), image.size(1), "resize");
  if (box.height < 1 || box.width < 1)
    fail<ValueError>("resize: expected a box of at least 1 x 1 pixels, got {} x {}", box.height,
                     box.width);
}

}  // namespace

Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width, const Box& box) {
  check_arguments(image, height, width, box);
  if (box.width == width && box.left == 0 && width == image.size(1)) {
    if (box.height == height && height == image.size(0)) return image;
    return scale_columns(image, box.top, box.height, height);
  }
  const Tensor rows = scale_rows(image, box, width);
  return box.height == height ? rows : scale_columns(rows, 0, box.height, height);
}

Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width) {
  check_image(image, "resize");
  return resize(image, height, width, {.height = image.size(0), .width = image.size(1)});
}

Tensor resize_mask(const Tensor& mask, std::int64_t height, std::int64_t width, const Box& box) {
  check_arguments(mask, height, width, box);
  if (mask.size(2) != 1)
    fail<ShapeError>("resize_mask: expected a mask (height, width, 1), got shape {}",
                     to_string(mask.shape()));
  const Tensor result = empty({height, width, 1}, {.dtype = uint8});
  std::uint8_t* to = result.data<std::uint8_t>();
  for (std::int64_t y = 0; y < height; ++y) {
    const std::uint8_t* const row =
        mask.data<std::uint8_t>() +
        (box.top + (2 * y + 1) * box.height / (2 * height)) * mask.size(1) + box.left;
    for (std::int64_t x = 0; x < width; ++x) *to++ = row[(2 * x + 1) * box.width / (2 * width)];
  }
  return result;
}

Tensor resize_mask(const Tensor& mask, std::int64_t height, std::int64_t width) {
  check_image(mask, "resize_mask");
  return resize_mask(mask, height, width, {.height = mask.size(0), .width = mask.size(1)});
}

Tensor resize_shorter_side(const Tensor& image, std::int64_t size) {
  check_image(image, "resize");
  const std::int64_t height = image.size(0), width = image.size(1);
  const auto [shorter, longer] = std::minmax(height, width);
  if (size < 1) fail<ValueError>("resize: expected a size of at least 1, got {}", size);
  if (static_cast<double>(size) * static_cast<double>(size) >
      most_scaled_pixels / static_cast<double>(longer) * static_cast<double>(shorter))
    fail<DataError>(
        "resize: an image of {} x {} pixels whose shorter side gets {} would have more than {:.0f} "
        "pixels; is it a picture?",
        height, width, size, most_scaled_pixels);
  const std::int64_t scaled = size * longer / shorter;
  return height < width ? resize(image, size, scaled) : resize(image, scaled, size);
}

Resize::Resize(std::int64_t size) : size_(size) {
  if (size < 1) fail<ValueError>("Resize: expected a size of at least 1, got {}", size);
}

Sample Resize::operator()(Sample sample, Generator&) const {
  sample.image = resize_shorter_side(sample.image, size_);
  if (sample.mask.defined())
    sample.mask = resize_mask(sample.mask, sample.image.size(0), sample.image.size(1));
  return sample;
}

RandomScale::RandomScale(double low, double high) : low_(low), high_(high) {
  check_range(low, high, 1e-3, "RandomScale", "factor");
}

Sample RandomScale::operator()(Sample sample, Generator& random) const {
  check_image(sample.image, "RandomScale");
  const double factor = random.uniform(low_, high_);
  const auto scaled = [&](std::int64_t size) {
    return std::max<std::int64_t>(1, std::llrint(static_cast<double>(size) * factor));
  };
  const std::int64_t height = scaled(sample.image.size(0)), width = scaled(sample.image.size(1));
  sample.image = resize(sample.image, height, width);
  if (sample.mask.defined()) sample.mask = resize_mask(sample.mask, height, width);
  return sample;
}

}  // namespace tutti::data
