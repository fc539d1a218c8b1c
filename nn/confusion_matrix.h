// ConfusionMatrix: how often each class was taken for each other, over all pixels and ranks, and
// the scores of segmentation that follow from it.
#pragma once

#include "../distributed/process_group.h"

#include <string>
#include <vector>

namespace tutti::nn {

/// Counts pairs of a true and a predicted class, in int64 on the CPU:
///
///   nn::ConfusionMatrix matrix(classes);
///   matrix.add(argmax(net(images), 1), masks);  // in each step, this rank's pixels
///   matrix.all_reduce(group);                   // once, at the end
///   matrix.mean_iou();
class ConfusionMatrix {
 public:
  /// Pixels whose true class is `ignore_index` do not count. ValueError for less than one class.
  explicit ConfusionMatrix(std::int64_t classes, std::int64_t ignore_index = 255);

  /// Counts pixels. Both tensors are int64 and have one shape; those of a GPU are copied to the
  /// CPU. A prediction of -1 stands for no class, as of logits that are not finite. ShapeError or
  /// DTypeError for other tensors. ValueError, and no count, for another prediction outside of the
  /// classes, or such a target that is not ignored.
  void add(const Tensor& predictions, const Tensor& targets);
  /// Adds the counts of all ranks, which all get the sums. This call is collective: one all-reduce.
  void all_reduce(const ProcessGroup& group);

  /// Returns the counts (classes, classes): those of true class i and predicted class j at (i, j).
  Tensor counts() const { return table_.slice(1, 1, classes_ + 1).contiguous(); }
  /// Returns the counts (classes, 1 + classes) with those of no predicted class in front.
  const Tensor& table() const { return table_; }
  /// Returns, for each class, the pixels that have it in truth and prediction by those that have it
  /// in either; NaN for a class that neither has.
  std::vector<double> iou() const;
  /// Returns the mean of iou() over the classes that occur; NaN if none does.
  double mean_iou() const;
  /// Returns the part of the pixels whose class was predicted; NaN for no pixels.
  double pixel_accuracy() const;
  /// Returns "mIoU 0.5312 of 9 classes, pixel accuracy 0.9123; absent: boat, cat". Absent classes
  /// occur neither in truth nor in predictions, and so are in no mean. A class without a name is
  /// called by its number.
  std::string summary(const std::vector<std::string>& class_names = {}) const;

 private:
  std::int64_t classes_, ignore_index_;
  Tensor table_;
};

}  // namespace tutti::nn
