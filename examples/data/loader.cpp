#include "loader.h"

#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>

#include <algorithm>
#include <numeric>

namespace tutti::examples {
namespace {

// Returns the seed of an independent random stream for each (epoch, sample): the finalizer of
// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over the parts.
std::uint64_t stream_seed(std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
  std::uint64_t h = seed;
  for (const std::int64_t part : {epoch, sample}) {
    h += 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(part);
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    h ^= h >> 31;
  }
  return h;
}

// How one training image is changed.
struct Augmentation {
  bool flip = false;
  std::int64_t dx = 0, dy = 0;  // the shift in pixels
};

Augmentation draw_augmentation(std::uint64_t seed, std::int64_t padding) {
  Generator generator(seed);
  Augmentation drawn;
  drawn.flip = generator.next() & 1;
  if (padding > 0) {
    drawn.dy = generator.below(2 * padding + 1) - padding;
    drawn.dx = generator.below(2 * padding + 1) - padding;
  }
  return drawn;
}

}  // namespace

Loader::Loader(const Dataset& data, Options options) : data_(data), options_(options) {
  if (options.batch_size < 1)
    fail<ValueError>("the batch size must be at least 1, got {}", options.batch_size);
  order_.resize(static_cast<std::size_t>(data.count));
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  for (int byte = 0; byte < 256; ++byte)
    for (std::size_t c = 0; c < static_cast<std::size_t>(data.channels); ++c)
      normalized_.push_back((static_cast<float>(byte) / 255 - data.mean[c]) / data.deviation[c]);
}

std::int64_t Loader::batches_per_epoch() const {
  return (data_.count + options_.batch_size - 1) / options_.batch_size;
}

void Loader::shuffle(std::int64_t epoch) {
  if (!options_.training || shuffled_ == epoch) return;
  order_ = Generator(stream_seed(options_.seed, epoch, -1)).permutation(data_.count);
  shuffled_ = epoch;
}

Batch Loader::batch(std::int64_t epoch, std::int64_t index) {
  shuffle(epoch);
  const std::int64_t first = index * options_.batch_size;
  const std::int64_t whole = std::clamp<std::int64_t>(data_.count - first, 0, options_.batch_size);
  const std::int64_t begin = first + whole * options_.rank / options_.ranks;
  const std::int64_t n = first + whole * (options_.rank + 1) / options_.ranks - begin;
  Batch batch{.images = empty({n, data_.channels, data_.height, data_.width}, {}, options_.format),
              .labels = empty({n}, {.dtype = int64}),
              .global_size = whole,
              .indices = {order_.begin() + begin, order_.begin() + begin + n}};
  float* const images = batch.images.data<float>();
  std::int64_t* const labels = batch.labels.data<std::int64_t>();
  parallel_for(n, 8, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t sample = order_[static_cast<std::size_t>(begin + i)];
      labels[i] = data_.labels[static_cast<std::size_t>(sample)];
      fill_sample(epoch, sample, images + i * data_.image_size());
    }
  });
  batch.images = batch.images.to(options_.dtype).to(options_.device);
  batch.labels = batch.labels.to(options_.device);
  return batch;
}

// Writes one image, augmented and normalized, in the layout of the batch.
void Loader::fill_sample(std::int64_t epoch, std::int64_t sample, float* target) const {
  Augmentation a;
  if (options_.training)
    a = draw_augmentation(stream_seed(options_.seed, epoch, sample), data_.crop_padding);
  const std::int64_t channels = data_.channels, height = data_.height, width = data_.width;
  const bool channels_last = options_.format == MemoryFormat::channels_last;
  const std::int64_t step_c = channels_last ? 1 : height * width,
                     step_x = channels_last ? channels : 1, step_y = width * step_x;
  const std::uint8_t* const source = data_.images.data() + sample * data_.image_size();
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t from_y = y + a.dy, from_x = (a.flip ? width - 1 - x : x) + a.dx;
      const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
      const std::int64_t pixel = (from_y * width + from_x) * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        // Pixels from outside of the image are black, as if it were padded before it is normalized.
        const std::int64_t byte = inside ? source[pixel + c] : 0;
        target[y * step_y + x * step_x + c * step_c] =
            normalized_[static_cast<std::size_t>(byte * channels + c)];
      }
    }
}

}  // namespace tutti::examples
