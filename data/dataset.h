// Dataset is a list of labelled images, or of images with masks, that are read on demand. This
// header has the interface, and the datasets that need no files: parts of others, tensors in
// memory, and made-up images. image_folder.h reads files; loader.h makes batches.
#pragma once

#include "../core/tensor.h"

#include <memory>
#include <string>
#include <vector>

namespace tutti::data {

/// One labelled image, or an image with the class of each pixel.
struct Sample {
  Tensor image;            ///< uint8 (height, width, channels), of any size
  std::int64_t label = 0;  ///< the number of its class
  std::string name = {};   ///< what errors call the sample: its file, or its index in the dataset
  /// The class of each pixel, uint8 (height, width, 1), contiguous; undefined where there is none.
  Tensor mask = {};
};

/// A Dataset is a list of samples. Its members may be called from many threads at a time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Returns the number of samples.
  virtual std::int64_t size() const = 0;
  /// Reads sample `index`, in 0..size()-1. The caller must not change the image, which may share
  /// its memory with the dataset. Throws a DataError that names a sample that cannot be read, and a
  /// ValueError for an index out of range.
  virtual Sample get(std::int64_t index) const = 0;
  /// Returns the name of every class, in the order of the labels; empty where they have no names.
  virtual std::vector<std::string> class_names() const { return {}; }
  /// Returns what errors call sample `index`, without reading it.
  virtual std::string describe(std::int64_t index) const;

 protected:
  /// Throws a ValueError unless `index` is in 0..size()-1.
  void check_index(std::int64_t index) const;
};

/// The samples of another dataset whose indices are listed, in the order of the list. An index may
/// occur several times.
class Subset final : public Dataset {
 public:
  /// Throws a ValueError for an index that the dataset does not have.
  Subset(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Sample get(std::int64_t index) const override;
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  std::string describe(std::int64_t index) const override;

 private:
  std::int64_t index_in_dataset(std::int64_t index) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<std::int64_t> indices_;
};

/// Images of one size that are in memory.
class TensorDataset final : public Dataset {
 public:
  /// `images` is uint8 (n, height, width, channels), contiguous, and `labels` int64 (n), both on
  /// the CPU. A sample's image is a view of `images`. Throws a ShapeError, DTypeError or
  /// DeviceError for other tensors.
  TensorDataset(Tensor images, Tensor labels, std::vector<std::string> class_names = {});

  std::int64_t size() const override { return images_.size(0); }
  Sample get(std::int64_t index) const override;
  std::vector<std::string> class_names() const override { return class_names_; }

 private:
  Tensor images_, labels_;
  std::vector<std::string> class_names_;
};

/// Made-up images: every class has a wave of its own direction and length, under noise. Sample
/// `index` follows from the options and `index` alone.
class SyntheticDataset final : public Dataset {
 public:
  struct Options {
    std::int64_t count = 1024;
    std::int64_t height = 32, width = 32, channels = 3;
    std::int64_t classes = 10;
    std::uint64_t seed = 0;
  };
  /// Throws a ValueError for a negative count and for sizes or classes below 1.
  explicit SyntheticDataset(Options options);

  std::int64_t size() const override { return options_.count; }
  Sample get(std::int64_t index) const override;

 private:
  Options options_;
};

}  // namespace tutti::data
