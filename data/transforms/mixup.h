// Soft labels, and the transforms of batches that mix samples: mixup (Zhang et al., ICLR 2018) and
// cutmix (Yun et al., ICCV 2019). Each sample is mixed with the one before it in its rank's batch,
// the first one with the last, as in torchvision. What is drawn for a sample does not depend on the
// ranks; which sample it is mixed with does, because no rank sees another one's images.
#pragma once

#include "../batch.h"
#include "transform.h"

namespace tutti::data {

/// Returns float32 (n, classes): `smoothing` is shared by all classes, and the rest is that of the
/// label. Throws a ValueError for a label outside 0..classes-1, or a smoothing outside [0, 1].
Tensor soft_labels(const Tensor& labels, std::int64_t classes, double smoothing = 0);

/// Replaces every sample i by weights[i] times itself and 1 - weights[i] times the one before it,
/// images and soft labels alike. Images are float32 (n, channels, height, width).
void mix(Batch& batch, const std::vector<double>& weights);

/// Pastes boxes[i] of the sample before into every sample i. The soft labels are mixed by the
/// areas.
void cut_and_mix(Batch& batch, const std::vector<Box>& boxes);

/// Gives a batch its soft labels, and thereby label smoothing.
class SoftLabels {
 public:
  struct Options {
    std::int64_t classes = 0;
    double smoothing = 0;
  };
  /// Throws a ValueError for less than one class, or a smoothing outside [0, 1].
  explicit SoftLabels(Options options);
  void operator()(Batch& batch, std::span<Generator> randoms) const;

 private:
  Options options_;
};

/// Blends samples. It stands behind SoftLabels.
class MixUp {
 public:
  /// A sample's weight is drawn from Beta(alpha, alpha). Throws a ValueError unless alpha is
  /// positive.
  explicit MixUp(double alpha = 0.2);
  void operator()(Batch& batch, std::span<Generator> randoms) const;

 private:
  double alpha_;
};

/// Pastes rectangles between samples. It stands behind SoftLabels.
class CutMix {
 public:
  /// The part of the area that stays is drawn from Beta(alpha, alpha), before the rectangle is cut
  /// at the image's border. Throws a ValueError unless alpha is positive.
  explicit CutMix(double alpha = 1);
  void operator()(Batch& batch, std::span<Generator> randoms) const;

 private:
  double alpha_;
};

/// Draws from the distribution Beta(alpha, alpha).
double draw_beta(double alpha, Generator& random);

}  // namespace tutti::data
