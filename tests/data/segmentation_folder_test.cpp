// SegmentationFolder and transforms of images with masks: masks of every kind, errors that name the
// file, one draw for image and mask, and a whole pipeline of batches.
#include <tutti/data/decode/formats.h>
#include <tutti/data/loader.h>
#include <tutti/data/segmentation_folder.h>
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/data/transforms/resize.h>

#include "distributed/messages.h"
#include "fixture.h"
#include "write_image.h"

namespace tutti {
namespace {

using namespace data;
using namespace test;

// Writes bytes (height, width, 1) as a PNG of 8 or 16 grey bits, or with a palette in which no two
// indices are ordered as their colours. `upper` is the upper byte of 16 bits. `orientation` is that
// of its own EXIF data.
void write_mask(const std::string& path, const Tensor& mask, int color_type = PNG_COLOR_TYPE_GRAY,
                int depth = 8, png_byte upper = 0, int orientation = 1) {
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
  auto exif = exif_with_orientation(orientation);
  if (orientation != 1) png_set_eXIf_1(png, info, exif.size(), exif.data());
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
    const Sample sample = folder.get(0);
    EXPECT_EQ(to_vector(sample.image), to_vector(image_a)) << color_type << " " << depth;
    EXPECT_EQ(to_vector(sample.mask), to_vector(mask_a)) << color_type << " " << depth;
  }
  for (const int color_type : {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE}) {
    const Tensor few = random_bytes(3, {6, 9, 1});
    write_mask(root + "/masks/a.png", few, color_type, 2);
    EXPECT_EQ(to_vector(SegmentationFolder(root).get(0).mask), to_vector(few));
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
  expect_contains(error(), {root + "/classes.txt is missing"});
  EXPECT_THROW(SegmentationFolder(root, {.decode = {.min_size = 3}}), ValueError);
}

// Labelling tools draw masks on what they show, and torchvision reads both as they are stored.
TEST_F(Segmentation, MasksFollowThePicturesThatExifTurns) {
  for (const std::int64_t width : {6, 10})
    for (int orientation = 2; orientation <= 8; ++orientation)
      for (const bool as_shown : {false, true}) {
        const Tensor mask = random_bytes(3, {6, width, 1}), right = upright(mask, orientation);
        write_jpeg(root + "/images/b.jpg", random_bytes(256, {6, width, 3}), 90, orientation);
        write_mask(root + "/masks/b.png", as_shown ? right : mask);
        const auto read = [&](MaskOrientation given) {
          const Sample sample = SegmentationFolder(root, {.mask_orientation = given}).get(1);
          EXPECT_EQ(sample.image.shape(), (Shape{right.size(0), right.size(1), 3}));
          return to_vector(sample.mask);
        };
        const auto truth = as_shown ? MaskOrientation::as_shown : MaskOrientation::as_stored;
        EXPECT_EQ(read(truth), to_vector(right)) << width << " " << orientation << " " << as_shown;
        if (width == 6 || orientation < 5)
          expect_contains(message_of<DataError>([&] { read(MaskOrientation::by_size); }),
                          {root + "/images/b.jpg", fmt::format("orientation ({})", orientation),
                           root + "/masks/b.png", "mask_orientation has to say which"});
        else  // the sizes decide, whatever was said
          for (const auto given :
               {MaskOrientation::by_size, MaskOrientation::as_stored, MaskOrientation::as_shown})
            EXPECT_EQ(read(given), to_vector(right)) << orientation << " " << as_shown;
      }
}

TEST_F(Segmentation, AMaskWithExifDataIsTurnedByThese) {
  const Tensor image = random_bytes(256, {8, 8, 3}), mask = random_bytes(3, {8, 8, 1});
  for (const int of_image : {1, 3}) {
    write_jpeg(root + "/images/b.jpg", image, 90, of_image);
    write_mask(root + "/masks/b.png", mask, PNG_COLOR_TYPE_GRAY, 8, 0, 3);
    EXPECT_EQ(to_vector(SegmentationFolder(root).get(1).mask), to_vector(upright(mask, 3)));
  }
  // Without orientation all is as it is stored.
  const SegmentationFolder stored(root, {.decode = {.apply_orientation = false}});
  EXPECT_EQ(to_vector(stored.get(1).mask), to_vector(mask));
  EXPECT_EQ(to_vector(read_mask(root + "/masks/b.png")), to_vector(upright(mask, 3)));
  EXPECT_EQ(read_orientation(root + "/images/b.jpg"), 3);
}

TEST_F(Segmentation, SizesAreReadFromTheBeginningsOfFiles) {
  const auto sizes = [&](std::int64_t index) {
    return SegmentationFolder(root).stored_size(index);
  };
  EXPECT_EQ(sizes(0), (std::pair<std::int64_t, std::int64_t>{6, 9}));
  EXPECT_EQ(sizes(1), (std::pair<std::int64_t, std::int64_t>{8, 5}));
  write_jpeg(root + "/images/b.jpg", random_bytes(256, {300, 7, 3}), 90, 6);
  EXPECT_EQ(sizes(1), (std::pair<std::int64_t, std::int64_t>{300, 7}));
  for (const char* bytes : {"", "\xFF\xD8\xFF", "\xFF\xD8\xFF\xE0 no markers and no size, never"}) {
    std::ofstream(root + "/images/b.jpg") << bytes;
    EXPECT_EQ(sizes(1), (std::pair<std::int64_t, std::int64_t>{0, 0}));
  }
}

TEST_F(Segmentation, NamesOfClassesAreThoseOfTheLines) {
  const auto names = [&](const std::string& text) {
    std::ofstream(root + "/classes.txt") << text;
    return SegmentationFolder(root).class_names();
  };
  const std::vector<std::string> expected{"sky", "s\u00e9a", "land"};
  EXPECT_EQ(names("\xEF\xBB\xBFsky\r\ns\u00e9a\r\nland\r\n\r\n\n"), expected);
  EXPECT_EQ(names("sky\ns\u00e9a\nland"), expected);
  const auto refusal = [&](const std::string& text) {
    return message_of<DataError>([&] { names(text); });
  };
  const std::string path = root + "/classes.txt";
  EXPECT_EQ(refusal("sky\n\nland\n"),
            path + ": line 2 is empty, which would shift the classes behind it; remove it");
  EXPECT_EQ(refusal(std::string("\xFF\xFEs\0k\0y\0\n\0", 10)),
            path + " is UTF-16; expected UTF-8, save it so");
  expect_contains(refusal("sky\ns\xE9"
                          "a\n"),
                  {path + ": line 2 (", "is not UTF-8"});
  expect_contains(refusal("sky\x1b[2J\n"), {path + ": line 1 (", "control characters"});
}

TEST_F(Segmentation, MasksAreTheLabelsOfBatches) {
  const auto folder = std::make_shared<SegmentationFolder>(root);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    DataLoader loader(
        folder, {.sampler = {.batch_size = 2, .seed = 4},
                 .transforms = {RandomScale(), RandomCrop({.size = 12}), RandomHorizontalFlip(),
                                Normalize({.format = format})}});
    const Batch batch = loader.next().value();
    const Tensor &images = batch.images, &masks = batch.labels;
    EXPECT_EQ(images.shape(), (Shape{2, 3, 12, 12}));
    EXPECT_TRUE(images.is_contiguous(format));
    EXPECT_EQ(masks.shape(), (Shape{2, 12, 12}));
    EXPECT_EQ(masks.dtype(), int64);
    for (const double value : to_vector(masks)) EXPECT_TRUE(value < 3 || value == 255) << value;
  }
  DataLoader loader(folder, {.sampler = {.batch_size = 1, .shuffle = false}});
  EXPECT_EQ(to_vector(loader.next()->labels), to_vector(mask_a));
}

TEST_F(Segmentation, AMaskThatDoesNotFollowItsImageIsRefused) {
  const auto folder = std::make_shared<SegmentationFolder>(root);
  const auto cut = [](const Tensor& image, Generator&) {
    return image.slice(0, 0, 4).contiguous();
  };
  DataLoader loader(folder, {.sampler = {.batch_size = 1, .shuffle = false}, .transforms = {cut}});
  expect_contains(message_of<DataError>([&] { loader.next(); }),
                  {root + "/images/a.png", "the size of its image (4, 9, 3), got uint8 (6, 9, 1)",
                   "has to take the Sample"});
}

// An image whose channels are its mask: whatever is drawn, both show the same.
TEST(TransformsOfMasks, ChangeImageAndMaskAlike) {
  Generator random(fresh_seed());
  // Halves of 0 and 200, so that bilinear and nearest pixels differ along one edge only.
  const Tensor mask = zeros({40, 30, 1}, {.dtype = uint8});
  mask.slice(1, 15, 30).fill_(200);
  const Tensor image = empty({40, 30, 3}, {.dtype = uint8});
  for (int c = 0; c < 3; ++c) image.select(2, c).copy_(mask.select(2, 0));
  const Transform transforms[] = {RandomScale(0.5, 2),
                                  RandomCrop({.size = 25, .padding = 0}),
                                  RandomCrop({.size = 50}),
                                  RandomHorizontalFlip(1),
                                  RandomResizedCrop({.size = 33}),
                                  CenterCrop(35),
                                  Resize(47)};
  for (const Transform& transform : transforms)
    for (int trial = 0; trial < 5; ++trial) {
      const Sample changed = transform({.image = image, .mask = mask}, random);
      const Tensor &seen = changed.image, &truth = changed.mask;
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

// Pillow's NEAREST takes the pixel in which the centre of the new one lies.
TEST(TransformsOfMasks, ResizingTakesTheNearestPixel) {
  const Tensor mask = arange(7, {.dtype = uint8}).reshape({1, 7, 1});
  EXPECT_EQ(to_vector(resize_mask(mask, 1, 3)), (std::vector<double>{1, 3, 5}));
  EXPECT_EQ(to_vector(resize_mask(mask, 1, 4)), (std::vector<double>{0, 2, 4, 6}));
  EXPECT_EQ(to_vector(resize_mask(mask, 2, 2, {.left = 2, .height = 1, .width = 5})),
            (std::vector<double>{3, 5, 3, 5}));
}

TEST(TransformsOfMasks, FillWhatWasOutside) {
  const Sample threes{.image = full({4, 4, 1}, 3, {uint8}), .mask = full({4, 4, 1}, 3, {uint8})};
  const Sample part = crop(threes, {.top = -1, .left = 2, .height = 3, .width = 4}, 9);
  EXPECT_EQ(to_vector(part.image), (std::vector<double>{0, 0, 0, 0, 3, 3, 0, 0, 3, 3, 0, 0}));
  EXPECT_EQ(to_vector(part.mask), (std::vector<double>{9, 9, 9, 9, 3, 3, 9, 9, 3, 3, 9, 9}));
}

TEST(TransformsOfMasks, Errors) {
  EXPECT_THROW(RandomScale(0, 1), ValueError);
  EXPECT_THROW(resize_mask(zeros({4, 4, 3}, {uint8}), 2, 2), ShapeError);
  EXPECT_THROW(resize_mask(zeros({4, 4, 1}, {uint8}), 0, 2), ValueError);
}

}  // namespace
}  // namespace tutti
