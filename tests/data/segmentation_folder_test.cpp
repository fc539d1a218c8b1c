// SegmentationFolder and the transforms of masked images: masks of every kind, errors that name the
// file, one draw for image and mask, and a whole pipeline of batches.
#include <tutti/data/loader.h>
#include <tutti/data/segmentation_folder.h>
#include <tutti/data/transforms/color_jitter.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/masked.h>
#include <tutti/data/transforms/normalize.h>

#include "distributed/messages.h"
#include "fixture.h"
#include "write_image.h"

namespace tutti {
namespace {

using namespace data;
using namespace test;

// Writes bytes (height, width, 1) as a PNG of 8 or 16 grey bits, or with a palette in which no two
// indices are ordered as their colours. `upper` is the upper byte of 16 bits.
void write_mask(const std::string& path, const Tensor& mask, int color_type = PNG_COLOR_TYPE_GRAY,
                int depth = 8, png_byte upper = 0) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(mask.size(1)),
               static_cast<png_uint_32>(mask.size(0)), depth, color_type, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_color palette[256];
  for (int i = 0; i < 256; ++i)
    palette[i] = {static_cast<png_byte>(i * 37), static_cast<png_byte>(255 - i), 7};
  if (color_type == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette, 1 << depth);
  png_write_info(png, info);
  if (depth < 8) png_set_packing(png);
  for (std::int64_t y = 0; y < mask.size(0); ++y) {
    std::vector<png_byte> row;
    for (std::int64_t x = 0; x < mask.size(1); ++x) {
      if (depth == 16) row.push_back(upper);
      row.push_back(mask.data<std::uint8_t>()[y * mask.size(1) + x]);
    }
    png_write_row(png, row.data());
  }
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

Tensor random_bytes(std::int64_t bound, const Shape& shape) {
  return randint(bound, shape, {int64}).to(uint8);
}

// A folder with three classes and two samples, "a" of 6 x 9 pixels and "b" of 8 x 5.
class Segmentation : public ::testing::Test {
 protected:
  Segmentation() {
    for (const char* part : {"images", "masks"})
      std::filesystem::create_directories(root + "/" + part);
    std::ofstream(root + "/classes.txt") << "sky\nsea\r\nland\n";
    write_png(root + "/images/a.png", image_a);
    write_jpeg(root + "/images/b.jpg", random_bytes(256, {8, 5, 3}));
    write_mask(root + "/masks/a.png", mask_a);
    write_mask(root + "/masks/b.png", random_bytes(3, {8, 5, 1}));
  }
  std::string error() const {
    return message_of<DataError>([&] {
      const SegmentationFolder folder(root);
      for (std::int64_t i = 0; i < folder.size(); ++i) folder.get(i);
    });
  }

  const TemporaryFolder temporary{"segmentation"};
  const std::string root = temporary.path();
  const Tensor image_a = random_bytes(256, {6, 9, 3}), mask_a = random_bytes(3, {6, 9, 1});
};

TEST_F(Segmentation, ReadsImagesWithTheirMasks) {
  mask_a.select(0, 2).fill_(255);
  const std::pair<int, int> kinds[] = {
      {PNG_COLOR_TYPE_GRAY, 8}, {PNG_COLOR_TYPE_GRAY, 16}, {PNG_COLOR_TYPE_PALETTE, 8}};
  for (const auto& [color_type, depth] : kinds) {
    write_mask(root + "/masks/a.png", mask_a, color_type, depth);
    const SegmentationFolder folder(root);
    ASSERT_EQ(folder.size(), 2);
    EXPECT_EQ(folder.class_names(), (std::vector<std::string>{"sky", "sea", "land"}));
    EXPECT_EQ(folder.describe(1), root + "/images/b.jpg");
    const auto [image, mask] = split_mask(folder.get(0).image);
    EXPECT_EQ(to_vector(image), to_vector(image_a)) << color_type << " " << depth;
    EXPECT_EQ(to_vector(mask), to_vector(mask_a)) << color_type << " " << depth;
  }
  for (const int color_type : {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE}) {
    const Tensor few = random_bytes(3, {6, 9, 1});
    write_mask(root + "/masks/a.png", few, color_type, 2);
    EXPECT_EQ(to_vector(split_mask(SegmentationFolder(root).get(0).image).second), to_vector(few));
  }
}

TEST_F(Segmentation, ErrorsNameTheFile) {
  const std::string mask = root + "/masks/a.png";
  write_mask(mask, random_bytes(3, {9, 6, 1}));
  EXPECT_EQ(error(), mask + ": expected a mask of 6 x 9 pixels, as " + root +
                         "/images/a.png has, got 9 x 6");
  mask_a.select(0, 4).fill_(7);
  write_mask(mask, mask_a);
  EXPECT_EQ(error(), mask + ": expected classes from 0 to 2 (or 255), got 7 in row 4, column 0");
  write_mask(mask, zeros({6, 9, 1}, {uint8}), PNG_COLOR_TYPE_GRAY, 16, 2);
  EXPECT_EQ(error(), mask + ": expected values from 0 to 255, got 512 in row 0, column 0");
  write_png(mask, image_a);
  EXPECT_EQ(error(), mask + ": expected grey levels or a palette, found colours or transparency");
  write_jpeg(mask, image_a);
  expect_contains(error(), {mask, "expected a PNG as a mask, found a JPEG"});
  std::filesystem::remove(mask);
  EXPECT_EQ(error(), root + "/images/a.png has no mask; expected " + mask);
  write_mask(mask, mask_a);
  write_mask(root + "/masks/c.png", mask_a);
  expect_contains(error(), {root + "/masks/c.png has no image"});
  write_png(root + "/images/c.png", image_a);
  write_png(root + "/images/c.jpg", image_a);
  expect_contains(error(), {"/images/c.", "have one name"});
  std::ofstream(root + "/classes.txt") << "\n";
  expect_contains(error(), {root + "/classes.txt: expected the names of 1 to 255 classes"});
  std::filesystem::remove(root + "/classes.txt");
  expect_contains(error(), {root + "/classes.txt", "No such file"});
  EXPECT_THROW(SegmentationFolder(root, {.decode = {.min_size = 3}}), ValueError);
}

TEST_F(Segmentation, MakesBatchesOfWhichImagesAndMasksAreParts) {
  const auto folder = std::make_shared<SegmentationFolder>(root);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    DataLoader loader(
        folder, {.sampler = {.batch_size = 2, .seed = 4},
                 .transforms = {RandomMaskedScale(), RandomMaskedRotation(10), RandomMaskedCrop(12),
                                RandomHorizontalFlip(), OnImage(ColorJitter({.brightness = 0.4})),
                                OnImage(Normalize({.format = format}))}});
    const auto [images, masks] = split_masks(loader.next()->images);
    EXPECT_EQ(images.shape(), (Shape{2, 3, 12, 12}));
    EXPECT_TRUE(images.is_contiguous(format));
    EXPECT_EQ(masks.shape(), (Shape{2, 12, 12}));
    EXPECT_EQ(masks.dtype(), int64);
    for (const double value : to_vector(masks)) EXPECT_TRUE(value < 3 || value == 255) << value;
  }
}

// An image whose channels are its mask: whatever is drawn, both show the same.
TEST(MaskedTransforms, ChangeImageAndMaskAlike) {
  Generator random(fresh_seed());
  // Halves of 0 and 200, so that bilinear and nearest pixels differ along one edge only.
  const Tensor mask = zeros({40, 30, 1}, {.dtype = uint8});
  mask.slice(1, 15, 30).fill_(200);
  const Tensor image = empty({40, 30, 3}, {.dtype = uint8});
  for (int c = 0; c < 3; ++c) image.select(2, c).copy_(mask.select(2, 0));
  const Transform transforms[] = {RandomMaskedScale(0.5, 2), RandomMaskedCrop(25),
                                  RandomMaskedCrop(50), RandomHorizontalFlip(1),
                                  RandomMaskedRotation(20)};
  for (const Transform& transform : transforms)
    for (int trial = 0; trial < 5; ++trial) {
      const auto [seen, truth] = split_mask(transform(join_mask(image, mask), random));
      ASSERT_EQ(seen.size(0), truth.size(0));
      ASSERT_EQ(seen.size(1), truth.size(1));
      std::int64_t differ = 0;
      for (std::int64_t i = 0; i < truth.numel(); ++i) {
        const int pixel = seen.data<std::uint8_t>()[3 * i], value = truth.data<std::uint8_t>()[i];
        EXPECT_TRUE(value == 0 || value == 200 || value == 255) << value;
        if (value != 255) differ += std::abs(pixel - value) > 100;
      }
      EXPECT_LE(differ, truth.numel() / 20);
    }
}

TEST(MaskedTransforms, FillWhatWasOutside) {
  const Tensor masked = full({4, 4, 2}, 3, {.dtype = uint8});
  const auto [image, mask] =
      split_mask(crop_masked(masked, {.top = -1, .left = 2, .height = 3, .width = 4}, 9));
  EXPECT_EQ(to_vector(image), (std::vector<double>{0, 0, 0, 0, 3, 3, 0, 0, 3, 3, 0, 0}));
  EXPECT_EQ(to_vector(mask), (std::vector<double>{9, 9, 9, 9, 3, 3, 9, 9, 3, 3, 9, 9}));
  const auto [turned, truth] = split_mask(rotate_masked(masked, 45, 9));
  EXPECT_EQ(truth.data<std::uint8_t>()[0], 9);
  EXPECT_LT(turned.data<std::uint8_t>()[0], 3);  // a part of a pixel
  EXPECT_EQ(to_vector(rotate_masked(masked, 0)), to_vector(masked));
  // A quarter turns counter-clockwise: the upper right corner comes to the upper left.
  const Tensor corner = zeros({3, 3, 2}, {.dtype = uint8});
  corner.select(0, 0).select(0, 2).fill_(8);
  EXPECT_EQ(to_vector(rotate_masked(corner, 90).select(0, 0).select(0, 0)),
            (std::vector<double>{8, 8}));
}

TEST(MaskedTransforms, Errors) {
  Generator random;
  const Tensor plain = full({4, 4, 1}, 3, {.dtype = uint8}), masked = full({4, 4, 2}, 3, {uint8});
  EXPECT_THROW(split_mask(plain), ShapeError);
  EXPECT_THROW(join_mask(plain, full({4, 5, 1}, 3, {uint8})), ShapeError);
  EXPECT_THROW(split_masks(zeros({2, 1, 4, 4})), ShapeError);
  EXPECT_THROW(OnImage([](const Tensor& x, Generator&) { return x.slice(0, 0, 2).contiguous(); })(
                   masked, random),
               ShapeError);
  EXPECT_THROW(RandomMaskedScale(0, 1), ValueError);
  EXPECT_THROW(RandomMaskedRotation(181), ValueError);
  EXPECT_THROW(RandomMaskedRotation(-1), ValueError);
  EXPECT_THROW(RandomMaskedCrop(0), ValueError);
}

}  // namespace
}  // namespace tutti
