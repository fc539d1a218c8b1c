#include "normalize.h"

#include "../../core/cpu_level.h"
#include "../../core/create.h"
#include "checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tutti::data {

// Writes byte * factor + summand of each channel of an image; defined in normalize_loops.cpp.
using WriteNormalized = void(const Tensor& image, MemoryFormat format, const float* factor,
                             const float* summand, float* out);
TUTTI_CPU_LEVEL_FUNCTION(WriteNormalized, write_normalized)

namespace {

void check_statistics(const std::vector<float>& mean, const std::vector<float>& deviation) {
  const auto is_positive = [](float d) { return std::isfinite(d) && d > 0; };
  const auto is_finite = [](float m) { return std::isfinite(m); };
  if (mean.empty() || mean.size() != deviation.size() ||
      !std::all_of(mean.begin(), mean.end(), is_finite) ||
      !std::all_of(deviation.begin(), deviation.end(), is_positive))
    fail<ValueError>(
        "Normalize: expected as many finite means as positive deviations, at least one; got {} and "
        "{} numbers: {} and {}",
        mean.size(), deviation.size(), fmt::join(mean, ", "), fmt::join(deviation, ", "));
}

}  // namespace

Tensor normalize(const Tensor& image, const std::vector<float>& mean,
                 const std::vector<float>& deviation, MemoryFormat format) {
  check_image(image, "Normalize");
  check_statistics(mean, deviation);
  const std::int64_t height = image.size(0), width = image.size(1), channels = image.size(2);
  const auto given = static_cast<std::int64_t>(mean.size());
  if (given != 1 && given != channels)
    fail<ValueError>(
        "Normalize: got {} means for an image of {} channels; expected {}, or 1 for all", given,
        channels, channels);
  float factor[4], summand[4];
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto at = static_cast<std::size_t>(given == 1 ? 0 : c);
    factor[c] = static_cast<float>(1 / (255 * static_cast<double>(deviation[at])));
    summand[c] = static_cast<float>(-static_cast<double>(mean[at]) / deviation[at]);
  }
  // As a batch of one image, so that the strides are those of the batch.
  const Shape batch{1, channels, height, width};
  const Strides strides = dense_strides(batch, format);
  const Tensor memory = empty(batch);
  float* const out = memory.data<float>();
  write_normalized_of_level()(image, format, factor, summand, out);
  return Tensor(memory.storage(), {channels, height, width},
                Strides(strides.begin() + 1, strides.end()), 0, float32);
}

Normalize::Normalize(Options options) : options_(std::move(options)) {
  check_statistics(options_.mean, options_.deviation);
}

}  // namespace tutti::data
