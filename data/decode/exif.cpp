#include "formats.h"

namespace tutti::data {
namespace {

// Reads numbers of a TIFF structure, whose header says in which order their bytes are. A number
// beyond the end is 0.
struct TiffReader {
  std::span<const std::uint8_t> bytes;
  bool big_endian = false;

  std::uint32_t read(std::size_t at, std::size_t width) const {
    if (at > bytes.size() || bytes.size() - at < width) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < width; ++i)
      value = value << 8 | bytes[big_endian ? at + i : at + width - 1 - i];
    return value;
  }
};

}  // namespace

int exif_orientation(std::span<const std::uint8_t> tiff) {
  constexpr std::uint32_t orientation_tag = 0x0112, type_short = 3, type_long = 4;
  if (tiff.size() < 8) return 1;
  const TiffReader reader{tiff, tiff[0] == 'M'};
  if (reader.read(2, 2) != 42) return 1;
  const std::size_t directory = reader.read(4, 4), entries = reader.read(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;  // tag, type, count, value
    if (reader.read(entry, 2) != orientation_tag) continue;
    const std::uint32_t type = reader.read(entry + 2, 2);
    if (type != type_short && type != type_long) return 1;
    const std::uint32_t value = reader.read(entry + 8, type == type_short ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace tutti::data
