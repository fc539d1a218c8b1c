// Soft labels, mixup and cutmix, against torchvision on fixtures.
#include <tutti/data/transforms/mixup.h>

#include "fixture.h"

namespace tutti {
namespace {

using namespace data;
using namespace test;

void expect_near(const Tensor& got, const Tensor& expected, double tolerance) {
  ASSERT_EQ(got.shape(), expected.shape());
  const std::vector<double> a = to_vector(got), b = to_vector(expected);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

Batch fixture_batch(MemoryFormat format = MemoryFormat::contiguous) {
  Batch batch{.images = data_fixture("batch.images").clone().contiguous(format),
              .labels = data_fixture("batch.labels")};
  batch.soft_labels = soft_labels(batch.labels, 4);
  return batch;
}

TEST(SoftLabels, ShareTheSmoothingAmongAllClasses) {
  const Tensor labels = tensor({1, 0}, {.dtype = int64});
  expect_near(soft_labels(labels, 4, 0.2),
              tensor({0.05, 0.85, 0.05, 0.05, 0.85, 0.05, 0.05, 0.05}, {2, 4}), 1e-7);
  expect_error<ValueError>([&] { soft_labels(labels, 1); }, {"0 to 0", "got 1"});
  expect_error<ValueError>([] { soft_labels(tensor({-1}, {.dtype = int64}), 3); }, {"got -1"});
  EXPECT_THROW(soft_labels(labels, 2, 1.5), ValueError);
  EXPECT_EQ(soft_labels(zeros({0}, {.dtype = int64}), 3).shape(), (Shape{0, 3}));
  EXPECT_THROW(SoftLabels({.classes = 0}), ValueError);
}

TEST(MixUp, IsThatOfTorchvision) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    Batch batch = fixture_batch(format);
    mix(batch, {0.3, 0.3, 0.3});
    expect_near(batch.images, data_fixture("mixup.images"), 1e-6);
    expect_near(batch.soft_labels, data_fixture("mixup.soft_labels"), 1e-6);
  }
}

TEST(CutMix, IsThatOfTorchvision) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    Batch batch = fixture_batch(format);
    const Box box{.top = 2, .left = 1, .height = 3, .width = 3};
    cut_and_mix(batch, {box, box, box});
    expect_near(batch.images, data_fixture("cutmix.images"), 1e-6);
    expect_near(batch.soft_labels, data_fixture("cutmix.soft_labels"), 1e-6);
  }
}

TEST(MixUp, ABatchWhoseImagesAreNotOneAfterTheOtherIsRefused) {
  Batch batch;
  batch.images = ones({3, 4, 5, 2}).permute({3, 0, 1, 2});
  batch.soft_labels = ones({2, 3});
  expect_error<ShapeError>([&] { mix(batch, {0.5, 0.5}); }, {"one after the other"});
  batch.images = ones({2, 3, 4, 5});
  batch.soft_labels = ones({1, 3});
  expect_error<ShapeError>([&] { mix(batch, {0.5, 0.5}); }, {"soft labels (2, classes)"});
}

TEST(CutMix, SoftLabelsAreMixedByTheAreaThatWasPasted) {
  const std::uint64_t seed = fresh_seed();
  bool pasted = false;
  for (std::uint64_t trial = 0; trial < 50; ++trial) {
    // Image i is constant i, so that its pixels say where they came from.
    Batch batch{.images = empty({3, 1, 8, 8}), .labels = tensor({0, 1, 2}, {.dtype = int64})};
    for (std::int64_t i = 0; i < 3; ++i) batch.images.select(0, i).fill_(static_cast<double>(i));
    batch.soft_labels = soft_labels(batch.labels, 3);
    std::vector<Generator> randoms;
    for (std::uint64_t i = 0; i < 3; ++i) randoms.emplace_back(seed + 3 * trial + i);
    CutMix()(batch, randoms);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t source = 0; source < 3; ++source) {
        int pixels = 0;
        for (const double value : to_vector(batch.images.select(0, i)))
          pixels += value == static_cast<double>(source);
        EXPECT_NEAR(to_vector(batch.soft_labels)[static_cast<std::size_t>(i * 3 + source)],
                    pixels / 64.0, 1e-6);
        pasted = pasted || (source != i && pixels > 0);
      }
  }
  EXPECT_TRUE(pasted);
}

TEST(MixUp, WhatItNeedsIsSaid) {
  Batch batch = fixture_batch();
  EXPECT_THROW(mix(batch, {0.3}), ShapeError);
  batch.soft_labels = {};
  std::vector<Generator> randoms(3);
  expect_error<ValueError>([&] { MixUp(0.2)(batch, randoms); }, {"SoftLabels"});
  EXPECT_THROW(MixUp(0), ValueError);
  EXPECT_THROW(CutMix(-1), ValueError);
}

TEST(MixUp, AnEmptyBatchStaysEmpty) {
  Batch batch{.images = empty({0, 2, 4, 4}), .labels = empty({0}, {.dtype = int64})};
  batch.soft_labels = soft_labels(batch.labels, 3);
  MixUp(0.2)(batch, {});
  CutMix()(batch, {});
  EXPECT_EQ(batch.images.shape(), (Shape{0, 2, 4, 4}));
}

TEST(DrawBeta, HasTheMeanAndVarianceOfTheDistribution) {
  Generator random(fresh_seed());
  for (const double alpha : {0.01, 0.2, 1.0, 3.0}) {
    constexpr int count = 20'000;
    double sum = 0, squares = 0;
    for (int i = 0; i < count; ++i) {
      const double x = draw_beta(alpha, random);
      ASSERT_TRUE(x >= 0 && x <= 1) << x;
      sum += x;
      squares += (x - 0.5) * (x - 0.5);
    }
    EXPECT_NEAR(sum / count, 0.5, 0.02) << alpha;
    EXPECT_NEAR(squares / count, 1 / (4 * (2 * alpha + 1)), 0.01) << alpha;
  }
}

}  // namespace
}  // namespace tutti
