// Transforms against PIL and torchvision on fixtures, and the ranges of what they draw.
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/data/transforms/resize.h>

#include "fixture.h"

#include <cmath>
#include <limits>
#include <set>

namespace tutti {
namespace {

using namespace data;
using namespace test;

const Tensor& image() {
  static const Tensor image = data_fixture("image");
  return image;
}

TEST(Resize, IsThatOfPilToTheBit) {
  for (const auto& [height, width] :
       {std::pair<int, int>{20, 13}, {5, 4}, {37, 11}, {12, 29}, {61, 50}, {40, 10}, {1, 1}}) {
    const std::string key = fmt::format("resize_bilinear_{}x{}", height, width);
    expect_levels(resize(image(), height, width), data_fixture(key), 0, key);
  }
  expect_levels(resize(data_fixture("grey"), 17, 9), data_fixture("resize_grey_bilinear_17x9"), 0,
                "grey");
  expect_levels(resize(image(), 16, 12, {.top = 3, .left = 5, .height = 21, .width = 17}),
                data_fixture("resize_box_bilinear"), 0, "box");
  expect_levels(resize_shorter_side(image(), 15), data_fixture("resize_shorter_bilinear_15"), 0,
                "shorter side");
}

TEST(Resize, ABoxIsScaledAsIfItHadBeenCroppedBefore) {
  Generator random(fresh_seed());
  for (int trial = 0; trial < 50; ++trial) {
    const std::int64_t channels = 1 + random.below(4), height = 1 + random.below(40),
                       width = 1 + random.below(40);
    const Tensor any = random_image(height, width, channels, random);
    Box box{.height = 1 + random.below(height), .width = 1 + random.below(width)};
    box.top = random.below(height - box.height + 1);
    box.left = random.below(width - box.width + 1);
    const std::int64_t to_height = 1 + random.below(40), to_width = 1 + random.below(40);
    expect_levels(resize(any, to_height, to_width, box),
                  resize(crop(any, box), to_height, to_width), 0, "box");
  }
}

TEST(Resize, AConstantImageStaysConstant) {
  for (const int value : {0, 1, 127, 254, 255}) {
    const Tensor constant = full({31, 17, 3}, value, {.dtype = uint8});
    for (const auto& [height, width] : {std::pair<int, int>{9, 5}, {70, 40}})
      expect_levels(resize(constant, height, width),
                    full({height, width, 3}, value, {.dtype = uint8}), 0, "constant");
  }
}

TEST(Resize, BadArgumentsAreNamed) {
  EXPECT_THROW(resize(image(), 0, 4), ValueError);
  EXPECT_THROW(resize(image(), 4, 4, {.top = 30, .height = 8, .width = 2}), ValueError);
  EXPECT_THROW(Resize(0), ValueError);
  expect_error<DTypeError>([] { resize(zeros({4, 4, 3}), 2, 2); }, {"uint8", "float32"});
  expect_error<ShapeError>([] { resize(zeros({4, 3}, {.dtype = uint8}), 2, 2); }, {"(4, 3)"});
  EXPECT_THROW(resize(zeros({0, 4, 3}, {.dtype = uint8}), 2, 2), ShapeError);
  EXPECT_THROW(resize(zeros({4, 4, 3}, {.dtype = uint8}).transpose(0, 1), 2, 2), ShapeError);
}

TEST(CenterCrop, IsThatOfTorchvision) {
  for (const auto& [height, width] :
       {std::pair<int, int>{10, 8}, {11, 9}, {30, 20}, {50, 9}, {44, 35}, {37, 29}, {41, 32}}) {
    const std::string key = fmt::format("center_crop_{}x{}", height, width);
    expect_levels(center_crop(image(), height, width), data_fixture(key), 0, key);
  }
}

TEST(Crop, WhatLiesOutsideIsFilled) {
  Generator random(fresh_seed());
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t height = 1 + random.below(6), width = 1 + random.below(6),
                       channels = 1 + random.below(3);
    const Tensor any = random_image(height, width, channels, random);
    const Box box{.top = random.below(21) - 10,
                  .left = random.below(21) - 10,
                  .height = 1 + random.below(8),
                  .width = 1 + random.below(8)};
    const Tensor expected = full({box.height, box.width, channels}, 77, {.dtype = uint8});
    std::uint8_t* next = expected.data<std::uint8_t>();
    for (std::int64_t y = box.top; y < box.top + box.height; ++y)
      for (std::int64_t x = box.left; x < box.left + box.width; ++x)
        for (std::int64_t c = 0; c < channels; ++c, ++next)
          if (y >= 0 && y < height && x >= 0 && x < width)
            *next = any.data<std::uint8_t>()[(y * width + x) * channels + c];
    expect_levels(crop(any, box, 77), expected, 0, "crop");
  }
  EXPECT_THROW(crop(image(), {.height = 0, .width = 3}), ValueError);
}

TEST(RandomCrop, EveryPlaceInThePaddedImageIsDrawn) {
  Generator random(fresh_seed());
  const RandomCrop random_crop({.size = 8, .padding = 2});
  std::set<std::int64_t> tops, lefts;
  for (int i = 0; i < 500; ++i) {
    const Box box = random_crop.draw(8, 9, random);
    EXPECT_EQ(box.height, 8);
    EXPECT_EQ(box.width, 8);
    tops.insert(box.top);
    lefts.insert(box.left);
  }
  EXPECT_EQ(tops, (std::set<std::int64_t>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(lefts, (std::set<std::int64_t>{-2, -1, 0, 1, 2, 3}));
  const Sample small = random_crop({.image = zeros({2, 3, 3}, {.dtype = uint8})}, random);
  EXPECT_EQ(small.image.shape(), (Shape{8, 8, 3}));
  EXPECT_THROW(RandomCrop({.size = 8, .padding = -1}), ValueError);
}

TEST(RandomResizedCrop, PartsHaveTheAreasAndRatiosAskedFor) {
  Generator random(fresh_seed());
  const RandomResizedCrop random_crop({.size = 16, .scale = {0.2, 0.7}, .ratio = {0.5, 2}});
  double smallest = 1, largest = 0, narrowest = 10, widest = 0;
  std::int64_t at_left = 0, at_right = 0;
  for (int i = 0; i < 5000; ++i) {
    const Box box = random_crop.draw(300, 400, random);
    ASSERT_TRUE(box.top >= 0 && box.left >= 0 && box.top + box.height <= 300 &&
                box.left + box.width <= 400);
    const double area = static_cast<double>(box.height * box.width) / (300 * 400),
                 ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    narrowest = std::min(narrowest, ratio);
    widest = std::max(widest, ratio);
    (2 * box.left + box.width < 400 ? at_left : at_right) += 1;
  }
  EXPECT_NEAR(smallest, 0.2, 0.01);
  EXPECT_NEAR(largest, 0.7, 0.01);
  EXPECT_NEAR(narrowest, 0.5, 0.02);
  EXPECT_NEAR(widest, 2, 0.05);
  EXPECT_NEAR(static_cast<double>(at_left), static_cast<double>(at_right), 500);
  EXPECT_EQ(random_crop({.image = image()}, random).image.shape(), (Shape{16, 16, 3}));
}

TEST(RandomResizedCrop, ImagesOfExtremeShapeGiveTheirCentre) {
  Generator random(fresh_seed());
  const RandomResizedCrop random_crop({.size = 4, .scale = {0.9, 1}});
  EXPECT_EQ(random_crop.draw(10, 1000, random), (Box{0, 493, 10, 13}));
  EXPECT_EQ(random_crop.draw(1000, 9, random), (Box{494, 0, 12, 9}));
  EXPECT_EQ(random_crop.draw(1, 1, random), (Box{0, 0, 1, 1}));
  EXPECT_THROW(RandomResizedCrop({.size = 0}), ValueError);
  EXPECT_THROW(RandomResizedCrop({.scale = {0, 1}}), ValueError);
  EXPECT_THROW(RandomResizedCrop({.ratio = {2, 1}}), ValueError);
}

TEST(RandomHorizontalFlip, MirrorsWithItsProbability) {
  expect_levels(horizontal_flip(image()), data_fixture("flip"), 0, "flip");
  Generator random(fresh_seed());
  int flipped = 0;
  for (int i = 0; i < 1000; ++i)
    flipped += !Transform(RandomHorizontalFlip(0.3))(image(), random).is_same(image());
  EXPECT_NEAR(flipped, 300, 75);  // five standard deviations
  EXPECT_THROW(RandomHorizontalFlip(1.1), ValueError);
}

TEST(Resize, AnImageOfOneRowIsRefusedBeforeItTakesAllMemory) {
  const Tensor row = zeros({1, 60000, 3}, {.dtype = uint8});
  expect_error<DataError>([&] { resize_shorter_side(row, 256); }, {"1 x 60000", "gets 256"});
  EXPECT_EQ(resize_shorter_side(row, 2).shape(), (Shape{2, 120000, 3}));
  EXPECT_THROW(resize_shorter_side(row, std::numeric_limits<std::int64_t>::max()), DataError);
  EXPECT_THROW(resize_shorter_side(row, 0), ValueError);
}

TEST(Normalize, IsThatOfTorchvisionInBothLayouts) {
  const Normalize::Options imagenet;
  const Tensor expected = data_fixture("normalized");
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor got = normalize(image(), imagenet.mean, imagenet.deviation, format);
    ASSERT_EQ(got.shape(), expected.shape());
    EXPECT_EQ(got.unsqueeze(0).memory_format(), format);
    const std::vector<double> a = to_vector(got), b = to_vector(expected);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6) << i;
  }
}

TEST(Normalize, EveryNumberOfChannelsAndPixelsIsNormalized) {
  Generator random(fresh_seed());
  for (std::int64_t channels = 1; channels <= 4; ++channels)
    for (const std::int64_t width : {1, 15, 16, 17, 50}) {
      const Tensor any = random_image(3, width, channels, random);
      std::vector<float> mean, deviation;
      for (std::int64_t c = 0; c < channels; ++c) {
        mean.push_back(static_cast<float>(random.uniform()));
        deviation.push_back(static_cast<float>(random.uniform(0.1, 1)));
      }
      for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        const std::vector<double> got = to_vector(normalize(any, mean, deviation, format));
        for (std::int64_t i = 0; i < 3 * width; ++i)
          for (std::int64_t c = 0; c < channels; ++c) {
            const auto at = static_cast<std::size_t>(c);
            const double byte = any.data<std::uint8_t>()[i * channels + c];
            ASSERT_NEAR(got[static_cast<std::size_t>(c * 3 * width + i)],
                        (byte / 255 - mean[at]) / deviation[at], 1e-5);
          }
      }
    }
  expect_error<ValueError>([] { normalize(image(), {0.1f, 0.2f}, {1, 1}); }, {"2 means", "3"});
  EXPECT_THROW(Normalize({.mean = {0}, .deviation = {0}}), ValueError);
  expect_error<ValueError>([] { Normalize({.mean = {NAN}, .deviation = {1}}); }, {"finite", "nan"});
  EXPECT_EQ(normalize(image(), {0.5f}, {0.5f}).size(0), 3);
}

TEST(Box, OneThatWouldOverflowIsRefused) {
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (const Box& box : {Box{.top = 1, .height = huge, .width = 1}, Box{.left = huge, .height = 1},
                         Box{.top = -huge, .height = 1, .width = huge}}) {
    expect_error<ValueError>([&] { resize(image(), 4, 4, box); }, {"does not lie in an image"});
  }
}

TEST(RandomKey, EachPartOfTheKeyChangesTheNumbers) {
  const std::uint64_t seed = fresh_seed();
  std::set<std::uint32_t> firsts;
  for (std::uint64_t s = 0; s < 3; ++s)
    for (std::int64_t epoch = 0; epoch < 10; ++epoch)
      for (std::int64_t sample = -1; sample < 10; ++sample)
        for (std::uint64_t step = 0; step < 4; ++step)
          firsts.insert(RandomKey{seed + s, epoch, sample}.generator(step).next());
  EXPECT_GE(firsts.size(), 3u * 10 * 11 * 4 - 1);  // two of 2^32 numbers may agree by chance
}

TEST(ApplyTransforms, EachStepHasItsOwnNumbers) {
  const RandomKey key{.seed = fresh_seed(), .epoch = 3, .sample = 5};
  std::vector<std::uint32_t> drawn;
  const Transform draw = [&](const Tensor& x, Generator& random) {
    drawn.push_back(random.next());
    return x;
  };
  const Transform draw_twice = [&](const Tensor& x, Generator& random) {
    random.next();
    return draw(x, random);
  };
  apply_transforms({draw, draw}, {.image = image()}, key);
  apply_transforms({draw_twice, draw}, {.image = image()}, key);
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_NE(drawn[0], drawn[2]);
  EXPECT_EQ(drawn[1], drawn[3]) << "what a transform draws must not change the next one's numbers";
}

}  // namespace
}  // namespace tutti
