// Tests of nn::ConfusionMatrix: counts and scores against plain loops, and the sums over ranks.
#include "distributed/messages.h"

#include <tutti/core/create.h>
#include <tutti/nn/confusion_matrix.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using nn::ConfusionMatrix;
using test::message_of;

TEST(ConfusionMatrix, CountsPairsAndNamesClassesThatNeverOccur) {
  ConfusionMatrix matrix(4);
  matrix.add(tensor({0, 0, 2, 2, 1, 2}, {2, 3}, {int64}),
             tensor({0, 2, 2, 2, 0, 255}, {2, 3}, {int64}));
  EXPECT_EQ(to_vector(matrix.counts()),
            (std::vector<double>{1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0}));
  const std::vector<double> iou = matrix.iou();
  EXPECT_DOUBLE_EQ(iou[0], 1.0 / 3);
  EXPECT_DOUBLE_EQ(iou[1], 0);  // predicted, but not there
  EXPECT_DOUBLE_EQ(iou[2], 2.0 / 3);
  EXPECT_TRUE(std::isnan(iou[3]));
  EXPECT_DOUBLE_EQ(matrix.mean_iou(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(matrix.pixel_accuracy(), 3.0 / 5);
  EXPECT_EQ(matrix.summary({"sky", "sea", "land", "cat"}),
            "mIoU 0.3333 of 3 classes, pixel accuracy 0.6000; absent: cat");
  EXPECT_TRUE(std::isnan(ConfusionMatrix(2).mean_iou()));
}

TEST(ConfusionMatrix, APixelOfNoPredictedClassIsMissedAndNobodysMistake) {
  ConfusionMatrix matrix(2);
  matrix.add(tensor({-1, 0, -1, 1, -1}, {int64}), tensor({0, 0, 1, 1, 255}, {int64}));
  EXPECT_EQ(to_vector(matrix.counts()), (std::vector<double>{1, 0, 0, 1}));
  EXPECT_EQ(to_vector(matrix.table()), (std::vector<double>{1, 1, 0, 1, 0, 1}));
  EXPECT_EQ(matrix.iou(), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(matrix.pixel_accuracy(), 0.5);
}

TEST(ConfusionMatrix, SeveralRanksCountAsOne) {
  const Tensor predictions = randint(5, {6, 7, 3}, {int64}),
               targets = randint(5, {6, 7, 3}, {int64});
  ConfusionMatrix whole(5);
  whole.add(predictions, targets);
  distributed::run_ranks(3, [&](const ProcessGroup& group) {
    const std::int64_t rank = group.rank();
    ConfusionMatrix part(5);
    // The parts have different sizes, and one is added in two steps.
    for (std::int64_t i = rank * (rank + 1) / 2; i < (rank + 1) * (rank + 2) / 2; ++i)
      part.add(predictions.select(0, i), targets.select(0, i));
    part.all_reduce(group);
    EXPECT_EQ(to_vector(part.counts()), to_vector(whole.counts()));
    EXPECT_EQ(part.mean_iou(), whole.mean_iou());
  });
}

TEST(ConfusionMatrix, Errors) {
  EXPECT_THROW(ConfusionMatrix(0), ValueError);
  ConfusionMatrix matrix(3);
  const Tensor right = zeros({2}, {int64});
  EXPECT_THROW(matrix.add(zeros({3}, {int64}), right), ShapeError);
  EXPECT_THROW(matrix.add(zeros({2}), right), DTypeError);
  EXPECT_THROW(matrix.add(tensor({0, -2}, {int64}), right), ValueError);
  EXPECT_EQ(message_of<ValueError>([&] {
              matrix.add(right, tensor({0, 3}, {int64}));
            }),
            "ConfusionMatrix: expected classes from 0 to 2 (or ignore_index 255 as a target), got "
            "target 3 and prediction 0");
  EXPECT_TRUE(std::isnan(matrix.mean_iou())) << "nothing was counted";
}

}  // namespace
}  // namespace tutti
