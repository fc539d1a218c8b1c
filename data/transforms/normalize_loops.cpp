// The loops of Normalize, compiled for each level of processors; normalize.cpp calls them.
#include "../../core/tensor.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::data::TUTTI_CPU_LEVEL {
namespace {

// out = byte * factor + summand, in one pass over rows of interleaved channels. The factors are
// repeated so that a block of 16 pixels is one loop that the compiler can vectorise.
template <int channels>
void write_interleaved(const std::uint8_t* in, std::int64_t pixels, const float* factor,
                       const float* summand, float* out) {
  constexpr int block = 16 * channels;
  float factors[block], summands[block];
  for (int i = 0; i < block; ++i) {
    factors[i] = factor[i % channels];
    summands[i] = summand[i % channels];
  }
  const std::int64_t count = pixels * channels;
  std::int64_t at = 0;
  for (; at + block <= count; at += block)
    for (int i = 0; i < block; ++i)
      out[at + i] = static_cast<float>(in[at + i]) * factors[i] + summands[i];
  for (int i = 0; at + i < count; ++i)
    out[at + i] = static_cast<float>(in[at + i]) * factors[i] + summands[i];
}

template <int channels>
void write_planes(const std::uint8_t* in, std::int64_t pixels, const float* factor,
                  const float* summand, float* out) {
  for (int c = 0; c < channels; ++c, out += pixels)
    for (std::int64_t i = 0; i < pixels; ++i)
      out[i] = static_cast<float>(in[i * channels + c]) * factor[c] + summand[c];
}

template <int channels>
void write(const Tensor& image, MemoryFormat format, const float* factor, const float* summand,
           float* out) {
  const std::int64_t pixels = image.size(0) * image.size(1);
  const auto write_all = format == MemoryFormat::channels_last ? write_interleaved<channels>
                                                               : write_planes<channels>;
  write_all(image.data<std::uint8_t>(), pixels, factor, summand, out);
}

}  // namespace

void write_normalized(const Tensor& image, MemoryFormat format, const float* factor,
                      const float* summand, float* out) {
  const std::int64_t channels = image.size(2);
  if (channels == 1) write<1>(image, format, factor, summand, out);
  else if (channels == 2) write<2>(image, format, factor, summand, out);
  else if (channels == 3) write<3>(image, format, factor, summand, out);
  else write<4>(image, format, factor, summand, out);
}

}  // namespace tutti::data::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
