// Decoders against PIL on fixtures, and files that are broken in every way.
#include <tutti/data/decode/decode_image.h>
#include <tutti/data/decode/formats.h>

#include "fixture.h"

#include <cstdlib>
#include <limits>
#include <thread>

#include <jpeglib.h>

namespace tutti {
namespace {

using namespace data;
using namespace test;

TEST(DecodeImage, JpegsAreThoseOfPil) {
  for (const std::string name : {"rgb.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg"}) {
    expect_levels(read_image(image_path(name)), data_fixture(name + ".rgb"), 1, name);
    expect_levels(read_image(image_path(name), {.channels = 1}), data_fixture(name + ".grey"), 1,
                  name + " as grey");
  }
}

TEST(DecodeImage, PngsAreThoseOfPilToTheBit) {
  for (const std::string name :
       {"rgb.png", "grey.png", "bits.png", "palette.png", "palette_transparent.png", "rgba.png",
        "grey_alpha.png", "rgb_16.png", "grey_16.png", "interlaced.png"})
    expect_levels(read_image(image_path(name)), data_fixture(name + ".rgb"), 0, name);
  expect_levels(read_image(image_path("rgb.png"), {.channels = 1}), data_fixture("rgb.png.grey"), 0,
                "grey");
}

TEST(DecodeImage, EveryExifOrientationIsMadeUpright) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const std::string name = fmt::format("orientation_{}.jpg", orientation);
    expect_levels(read_image(image_path(name)), data_fixture(name + ".rgb"), 1, name);
  }
  expect_levels(read_image(image_path("orientation_6.png")), data_fixture("orientation_6.png.rgb"),
                0, "PNG");
  const Tensor stored = read_image(image_path("orientation_6.jpg"), {.apply_orientation = false});
  EXPECT_EQ(stored.shape(), (Shape{9, 13, 3}));
}

// A TIFF structure with one entry: an orientation whose value has the type 3 (SHORT) or 4 (LONG).
std::vector<std::uint8_t> tiff(bool big_endian, std::uint32_t type, std::uint32_t value,
                               std::uint32_t magic = 42) {
  std::vector<std::uint8_t> bytes(2, big_endian ? 'M' : 'I');
  const auto add = [&](std::uint32_t number, int width) {
    for (int i = 0; i < width; ++i)
      bytes.push_back(static_cast<std::uint8_t>(number >> 8 * (big_endian ? width - 1 - i : i)));
  };
  add(magic, 2);
  add(8, 4);  // where the directory begins
  add(1, 2);
  add(0x0112, 2);
  add(type, 2);
  add(1, 4);
  add(value, type == 3 ? 2 : 4);
  if (type == 3) add(0, 2);
  return bytes;
}

TEST(Exif, TheOrientationMayBeAShortOrALongOfEitherByteOrder) {
  for (const bool big_endian : {false, true})
    for (const std::uint32_t type : {3u, 4u}) {
      for (std::uint32_t value = 1; value <= 8; ++value)
        EXPECT_EQ(exif_orientation(tiff(big_endian, type, value)), static_cast<int>(value))
            << type << " " << big_endian;
      for (const std::uint32_t value : {0u, 9u, 0x8000u})
        EXPECT_EQ(exif_orientation(tiff(big_endian, type, value)), 1);
    }
  // All four bytes of a LONG count.
  EXPECT_EQ(exif_orientation(tiff(false, 4, 0x10006)), 1);
  EXPECT_EQ(exif_orientation(tiff(true, 4, 0x60000)), 1);
}

TEST(Exif, WhatIsBrokenCountsAsUpright) {
  EXPECT_EQ(exif_orientation(tiff(false, 3, 6, 43)), 1) << "not the magic number of TIFF";
  EXPECT_EQ(exif_orientation(tiff(false, 2, 6)), 1) << "a text";
  for (const bool big_endian : {false, true}) {
    // The bytes behind the end are there, but belong to something else.
    const std::vector<std::uint8_t> whole = tiff(big_endian, 4, 6);
    for (std::size_t size = 0; size < whole.size(); ++size)
      EXPECT_EQ(exif_orientation(std::span(whole).first(size)), 1) << size;
  }
}

TEST(Exif, MayComeAfterOtherMetadataOfAJpeg) {
  std::vector<std::uint8_t> bytes = read_bytes(image_path("orientation_6.jpg"));
  const std::string content = std::string("\xff\xe1\x00\x24", 4) +
                              std::string("http://ns.adobe.com/xap/1.0/\0<x/>", 34);
  bytes.insert(bytes.begin() + 2, content.begin(), content.end());  // an XMP packet, behind SOI
  expect_levels(decode_image(bytes), data_fixture("orientation_6.jpg.rgb"), 1, "XMP first");
}

// Cameras and editors leave bytes between markers, and every program opens their files.
TEST(DecodeImage, SurplusBytesBetweenTheMarkersOfAJpegAreIgnored) {
  std::vector<std::uint8_t> bytes = read_bytes(image_path("rgb.jpg"));
  ASSERT_EQ(bytes[3], 0xe0);  // APP0, whose length follows
  const auto behind = static_cast<std::ptrdiff_t>(4 + (bytes[4] << 8 | bytes[5]));
  bytes.insert(bytes.begin() + behind, {0x12, 0x34, 0x56});
  expect_levels(decode_image(bytes), data_fixture("rgb.jpg.rgb"), 1, "surplus bytes");
}

// Returns a progressive JPEG of 8 x 8 pixels with one scan for each coefficient from the second to
// `last` of its three components, and as many that refine them.
std::vector<std::uint8_t> jpeg_of_many_scans(int last) {
  std::vector<jpeg_scan_info> scans{{3, {0, 1, 2}, 0, 0, 0, 0}};
  for (int component = 0; component < 3; ++component)
    for (int k = 1; k <= last; ++k) {
      scans.push_back({1, {component}, k, k, 0, 1});
      scans.push_back({1, {component}, k, k, 1, 0});
    }
  jpeg_error_mgr errors{};
  jpeg_compress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = jpeg.image_height = 8;
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg.scan_info = scans.data();
  jpeg.num_scans = static_cast<int>(scans.size());
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<std::uint8_t> row(24, 100);
  while (jpeg.next_scanline < 8) {
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&jpeg, &rows, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::vector<std::uint8_t> bytes(memory, memory + size);
  std::free(memory);
  return bytes;
}

TEST(DecodeImage, AJpegOfMoreThan200ScansIsRefused) {
  EXPECT_EQ(decode_image(jpeg_of_many_scans(33)).size(0), 8);  // 199 scans
  const std::vector<std::uint8_t> many = jpeg_of_many_scans(34);
  expect_error<DataError>([&] { decode_image(many); }, {"more than 200 scans"});
}

TEST(DecodeImage, AJpegIsScaledWhileBothSidesStayLargeEnough) {
  const struct {
    std::int64_t min_size;
    int denominator;
  } cases[] = {{0, 1}, {123, 1}, {63, 1}, {62, 2}, {32, 2}, {31, 4}, {17, 4}, {16, 8}, {1, 8}};
  for (const auto& [min_size, denominator] : cases)
    expect_levels(read_image(image_path("large.jpg"), {.min_size = min_size}),
                  data_fixture(fmt::format("large.jpg.scaled_{}", denominator)), 1,
                  fmt::format("min_size {}", min_size));
}

TEST(DecodeImage, TheContentDecidesAndNotTheName) {
  const PictureFolder folder;
  const std::string path = folder.add_image("picture.jpg", "rgb.png");
  expect_levels(read_image(path), data_fixture("rgb.png.rgb"), 0, "a PNG named .jpg");
}

TEST(DecodeImage, ErrorsNameTheFileAndWhatItIs) {
  const PictureFolder folder;
  const auto file = [&](const std::string& name, const std::string& content) {
    const std::string path = folder.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  };
  const struct {
    std::string name, content, reason;
  } cases[] = {
      {"empty.jpg", "", "empty"},
      {"gif.jpg", "GIF89a...........", "a GIF image"},
      {"webp.jpg", "RIFF....WEBPVP8 ", "a WebP image"},
      {"bmp.png", "BM..............", "a BMP image"},
      {"heic.jpg", std::string("\0\0\0\x18", 4) + "ftypheic........", "a HEIC image"},
      {"avif.jpg", std::string("\0\0\0\x1c", 4) + "ftypavif........", "an AVIF image"},
      {"jp2.jpg", std::string("\0\0\0\x0c", 4) + "jP  \r\n\x87\n....", "a JPEG 2000 image"},
      {"jxl.jpg", "\xFF\x0A..............", "a JPEG XL image"},
      {"boxed_jxl.jpg", std::string("\0\0\0\x0c", 4) + "JXL \r\n\x87\n....", "a JPEG XL image"},
      {"ppm.jpg", "P6\n2 1\n255\n......", "a PGM or PPM image"},
      {"pdf.jpg", "%PDF-1.7\n", "a PDF document"},
      {"page.jpg", "\n <!DOCTYPE html><html>", "HTML"},
      {"lfs.jpg", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
      {"text.png", "hello, world", "first byte is 0x68"},
      {"short.jpg", "\xFF\xD8\xFF", "the JPEG is corrupt or truncated"},
      {"short.png", "\x89PNG\r\n\x1A\n", "the PNG is corrupt or truncated"}};
  for (const auto& c : cases) {
    const std::string path = file(c.name, c.content);
    expect_error<DataError>([&] { read_image(path); }, {path, c.reason});
  }
  expect_error<DataError>([&] { read_image(folder.path() + "/none.jpg"); },
                          {"none.jpg", "does not exist"});
  expect_error<DataError>([&] { read_image(folder.path()); },
                          {folder.path(), "not a regular file"});
  expect_error<ValueError>([&] { read_image(image_path("rgb.jpg"), {.channels = 2}); },
                           {"1 or 3 channels, got 2"});
}

TEST(DecodeImage, EveryTruncationOfAFileIsAnError) {
  for (const std::string name :
       {"rgb.jpg", "progressive.jpg", "cmyk.jpg", "rgb.png", "interlaced.png", "palette.png"}) {
    const std::vector<std::uint8_t> whole = read_bytes(image_path(name));
    ASSERT_NO_THROW(decode_image(whole));
    for (std::size_t size = 0; size < whole.size() - 2; ++size)
      EXPECT_THROW(decode_image(std::span(whole).first(size)), DataError) << name << " " << size;
  }
}

TEST(DecodeImage, ChangedBytesGiveAnImageOrADataError) {
  std::mt19937 random(static_cast<unsigned>(fresh_seed()));
  int images = 0, errors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(image_path(""))) {
    const std::vector<std::uint8_t> whole = read_bytes(entry.path().string());
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<std::uint8_t> bytes = whole;
      for (int change = 0; change < 3; ++change)
        bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
      try {
        decode_image(bytes, {.max_pixels = 1'000'000});
        ++images;
      } catch (const DataError&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(images, 0);
  EXPECT_GT(errors, 0);
}

TEST(DecodeImage, AnImageThatClaimsTooManyPixelsIsRefusedBeforeMemoryIsTaken) {
  std::vector<std::uint8_t> png = read_bytes(image_path("rgb.png"));
  // The width and height stand behind the signature and "IHDR"; the CRC of the header follows.
  for (const std::size_t at : {16, 17, 20, 21}) png[at] = at % 4 == 0 ? 0x7f : 0xff;
  std::vector<std::uint8_t> jpeg = read_bytes(image_path("rgb.jpg"));
  for (std::size_t at = 0; at + 8 < jpeg.size(); ++at)
    if (jpeg[at] == 0xff && jpeg[at + 1] == 0xc0)
      for (const std::size_t k : {5, 6, 7, 8}) jpeg[at + k] = k % 2 == 1 ? 0xf0 : 0x01;
  const std::size_t peak = allocator(Device::cpu()).stats().peak;
  expect_error<DataError>([&] { decode_image(jpeg); }, {"61441 x 61441", "max_pixels"});
  EXPECT_THROW(decode_image(png), DataError);
  EXPECT_EQ(allocator(Device::cpu()).stats().peak, peak);
  // The limit is exact.
  const std::vector<std::uint8_t> small = read_bytes(image_path("rgb.png"));
  EXPECT_NO_THROW(decode_image(small, {.max_pixels = 23 * 18}));
  expect_error<DataError>([&] { decode_image(small, {.max_pixels = 23 * 18 - 1}); }, {"23 x 18"});
  // A chunk of metadata that claims a gigabyte, which libpng would allocate.
  std::vector<std::uint8_t> claims = test::read_bytes(image_path("rgb.png"));
  const std::vector<std::uint8_t> chunk{0x42, 0, 0, 0, 'e', 'X', 'I', 'f', 0, 0, 0, 0, 0, 0};
  claims.insert(claims.begin() + 33, chunk.begin(), chunk.end());  // behind the header
  expect_error<DataError>([&] { decode_image(claims); }, {"a chunk claims 1107296256 bytes"});
  constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(read_image(image_path("rgb.jpg"), {.max_pixels = unlimited}).size(2), 3);
}

TEST(DecodeImage, TheLimitOfPixelsHoldsForTheSizeAfterScalingToo) {
  const std::vector<std::uint8_t> png = read_bytes(image_path("rgb.png"));  // 23 x 18
  EXPECT_NO_THROW(decode_image(png, {.min_size = 36, .max_pixels = 4 * 23 * 18}));
  expect_error<DataError>([&] { decode_image(png, {.min_size = 37, .max_pixels = 4 * 23 * 18}); },
                          {"23 x 18 pixels", "a shorter side of 37"});
}

TEST(DecodeImage, ALargeFileThatIsNoImageIsNotReadWhole) {
  const PictureFolder folder;
  const std::string path = folder.path() + "/sparse.jpg";
  write_bytes(path, {'n', 'o'});
  std::filesystem::resize_file(path, std::uintmax_t{1} << 34);  // takes no space on the disk
  expect_error<DataError>([&] { read_image(path); }, {"expected a JPEG or PNG"});
  write_bytes(path, {0xff, 0xd8, 0xff});
  std::filesystem::resize_file(path, std::uintmax_t{1} << 34);
  expect_error<DataError>([&] { read_image(path); }, {path, "17179869184 bytes"});
}

TEST(DecodeImage, ThreadsDecodeAtOneTime) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 20; ++i) {
        expect_levels(read_image(image_path("rgb.png")), data_fixture("rgb.png.rgb"), 0, "PNG");
        expect_levels(read_image(image_path("rgb.jpg")), data_fixture("rgb.jpg.rgb"), 1, "JPEG");
        EXPECT_THROW(decode_image(std::vector<std::uint8_t>{0xff, 0xd8, 0xff, 0}), DataError);
      }
    });
}

}  // namespace
}  // namespace tutti
