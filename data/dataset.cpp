#include "dataset.h"

#include "../core/create.h"
#include "transforms/transform.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace tutti::data {

std::string Dataset::describe(std::int64_t index) const { return fmt::format("sample {}", index); }

void Dataset::check_index(std::int64_t index) const {
  if (index < 0 || index >= size())
    fail<ValueError>("dataset: expected an index from 0 to {}, got {}", size() - 1, index);
}

// ---- Subset

Subset::Subset(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices)
    : dataset_(std::move(dataset)), indices_(std::move(indices)) {
  if (!dataset_) fail<ValueError>("Subset: expected a dataset, got null");
  const std::int64_t size = dataset_->size();
  for (const std::int64_t index : indices_)
    if (index < 0 || index >= size)
      fail<ValueError>("Subset: expected indices from 0 to {}, got {}", size - 1, index);
}

std::int64_t Subset::index_in_dataset(std::int64_t index) const {
  check_index(index);
  return indices_[static_cast<std::size_t>(index)];
}

Sample Subset::get(std::int64_t index) const { return dataset_->get(index_in_dataset(index)); }

std::string Subset::describe(std::int64_t index) const {
  return dataset_->describe(index_in_dataset(index));
}

// ---- TensorDataset

TensorDataset::TensorDataset(Tensor images, Tensor labels, std::vector<std::string> class_names)
    : images_(std::move(images)), labels_(std::move(labels)), class_names_(std::move(class_names)) {
  if (images_.rank() != 4 || !images_.is_contiguous() || labels_.rank() != 1 ||
      !labels_.is_contiguous() || labels_.size(0) != images_.size(0))
    fail<ShapeError>(
        "TensorDataset: expected contiguous images (n, height, width, channels) and labels (n), "
        "got shapes {} and {}",
        to_string(images_.shape()), to_string(labels_.shape()));
  if (images_.dtype() != uint8 || labels_.dtype() != int64)
    fail<DTypeError>("TensorDataset: expected uint8 images and int64 labels, got {} and {}",
                     to_string(images_.dtype()), to_string(labels_.dtype()));
  if (!images_.device().is_cpu() || !labels_.device().is_cpu())
    fail<DeviceError>("TensorDataset: expected images and labels on the CPU; move them by .to()");
}

Sample TensorDataset::get(std::int64_t index) const {
  check_index(index);
  const Shape& shape = images_.shape();
  const Shape image(shape.begin() + 1, shape.end());
  const std::int64_t offset = images_.offset() + index * numel(image);
  return {.image = Tensor(images_.storage(), image, dense_strides(image), offset, uint8),
          .label = labels_.data<std::int64_t>()[index],
          .name = describe(index)};
}

// ---- SyntheticDataset

SyntheticDataset::SyntheticDataset(Options options) : options_(options) {
  if (options.count < 0 || options.height < 1 || options.width < 1 || options.channels < 1 ||
      options.classes < 1)
    fail<ValueError>(
        "SyntheticDataset: expected a count of at least 0, and height, width, channels and classes "
        "of at least 1, got {}, {}, {}, {} and {}",
        options.count, options.height, options.width, options.channels, options.classes);
}

Sample SyntheticDataset::get(std::int64_t index) const {
  check_index(index);
  // No transform draws in epoch -1, so that labels and transforms of one seed are independent.
  Generator random = RandomKey{.seed = options_.seed, .epoch = -1, .sample = index}.generator(0);
  const std::int64_t label = random.below(options_.classes);
  const auto part = static_cast<double>(label) / static_cast<double>(options_.classes);
  const double angle = std::numbers::pi * part, frequency = 0.4 + 0.5 * part,
               shift = random.uniform();
  Sample sample{
      .image = empty({options_.height, options_.width, options_.channels}, {.dtype = uint8}),
      .label = label,
      .name = describe(index)};
  std::uint8_t* pixel = sample.image.data<std::uint8_t>();
  for (std::int64_t y = 0; y < options_.height; ++y)
    for (std::int64_t x = 0; x < options_.width; ++x)
      for (std::int64_t c = 0; c < options_.channels; ++c) {
        const double along = std::cos(angle) * static_cast<double>(x) +
                             std::sin(angle) * static_cast<double>(y);
        const double wave = std::sin(along * frequency + shift + static_cast<double>(c));
        const double noise = static_cast<double>(random.next()) * 0x1p-32 - 0.5;
        *pixel++ = static_cast<std::uint8_t>(128 + 50 * wave + 60 * noise);
      }
  return sample;
}

}  // namespace tutti::data
