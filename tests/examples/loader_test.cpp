// Batches of the loader: the same for any number of ranks, a new order and augmentation in every
// epoch, normalized by mean and standard deviation.
#include "data/loader.h"

#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tutti {
namespace {

using namespace examples;

Dataset colored(std::int64_t count) {
  Dataset data = make_synthetic(count, 3, 8, 4);
  data.crop_padding = 2;
  data.mean = {0.1f, 0.2f, 0.3f};
  data.deviation = {0.5f, 0.25f, 2};
  return data;
}

TEST(Loader, AnyNumberOfRanksHasTheSameGlobalBatches) {
  const Dataset data = colored(53);
  for (const int ranks : {2, 3, 7}) {
    Loader whole(data, {.batch_size = 10, .seed = 3});
    std::vector<Loader> parts;
    for (int r = 0; r < ranks; ++r)
      parts.emplace_back(data,
                         Loader::Options{.batch_size = 10, .seed = 3, .rank = r, .ranks = ranks});
    for (std::int64_t epoch = 0; epoch < 2; ++epoch)
      for (std::int64_t b = 0; b < whole.batches_per_epoch(); ++b) {
        const Batch all = whole.batch(epoch, b);
        std::vector<double> images, labels;
        for (Loader& part : parts) {
          const Batch mine = part.batch(epoch, b);
          EXPECT_EQ(mine.global_size, all.global_size);
          for (const double v : to_vector(mine.images)) images.push_back(v);
          for (const double v : to_vector(mine.labels)) labels.push_back(v);
        }
        EXPECT_EQ(images, to_vector(all.images));
        EXPECT_EQ(labels, to_vector(all.labels));
      }
  }
}

TEST(Loader, LastBatchIsSmallerAndMayLeaveRanksWithNothing) {
  const Dataset data = colored(21);
  Loader loader(data, {.batch_size = 10, .rank = 0, .ranks = 2});
  EXPECT_EQ(loader.batches_per_epoch(), 3);
  const Batch last = loader.batch(0, 2);
  EXPECT_EQ(last.global_size, 1);
  EXPECT_EQ(last.images.shape(), (Shape{0, 3, 8, 8}));
  EXPECT_EQ(last.labels.shape(), Shape{0});
}

TEST(Loader, EveryEpochSeesEverySampleInANewOrder) {
  Dataset data = colored(30);
  for (std::size_t i = 0; i < 30; ++i) data.labels[i] = static_cast<std::uint8_t>(i);
  Loader loader(data, {.batch_size = 8});
  std::vector<std::vector<double>> orders;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<double> order;
    for (std::int64_t b = 0; b < loader.batches_per_epoch(); ++b)
      for (const double v : to_vector(loader.batch(epoch, b).labels)) order.push_back(v);
    EXPECT_EQ(std::set<double>(order.begin(), order.end()).size(), 30u);
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  Loader again(data, {.batch_size = 8}), other(data, {.batch_size = 8, .seed = 1});
  EXPECT_EQ(to_vector(again.batch(1, 0).labels), to_vector(loader.batch(1, 0).labels));
  EXPECT_NE(to_vector(other.batch(1, 0).labels), to_vector(loader.batch(1, 0).labels));
}

TEST(Loader, TestImagesComeInOrderNormalisedAndUnchanged) {
  const Dataset data = colored(5);
  for (const MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
    Loader loader(data, {.batch_size = 5, .training = false, .format = format});
    const Batch batch = loader.batch(0, 0);
    EXPECT_EQ(batch.images.memory_format(), format);
    const auto values = to_vector(batch.images);
    for (std::size_t n = 0; n < 5; ++n)
      for (std::size_t c = 0; c < 3; ++c)
        for (std::size_t p = 0; p < 64; ++p)
          ASSERT_NEAR(
              values[(n * 3 + c) * 64 + p],
              (data.images[(n * 64 + p) * 3 + c] / 255.0 - static_cast<double>(data.mean[c])) /
                  static_cast<double>(data.deviation[c]),
              1e-6);
  }
}

TEST(Loader, AugmentationFlipsAndShifts) {
  // The image is black but for one bright pixel, and the test looks where that goes.
  Dataset data{.count = 1, .channels = 1, .height = 8, .width = 8, .classes = 10};
  data.images.assign(64, 0);
  data.images[3 * 8 + 2] = 255;
  data.labels = {0};
  data.mean = {0};
  data.deviation = {1};
  const auto places = [&](int padding) {
    data.crop_padding = padding;
    std::set<std::int64_t> found;
    Loader loader(data, {.batch_size = 1});
    for (std::int64_t epoch = 0; epoch < 400; ++epoch) {
      const auto values = to_vector(loader.batch(epoch, 0).images);
      EXPECT_EQ(std::count(values.begin(), values.end(), 1.0), 1);
      found.insert(std::find(values.begin(), values.end(), 1.0) - values.begin());
    }
    return found;
  };
  EXPECT_EQ(places(0), (std::set<std::int64_t>{3 * 8 + 2, 3 * 8 + 5}));
  EXPECT_EQ(places(2).size(), 40u);  // rows 1 to 5; columns 0 to 4 and, flipped, 3 to 7
}

TEST(Loader, BatchSizeMustBePositive) {
  const Dataset data = colored(5);
  EXPECT_THROW(Loader(data, {.batch_size = 0}), ValueError);
}

}  // namespace
}  // namespace tutti
