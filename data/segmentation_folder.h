// SegmentationFolder is a dataset of images with the class of each pixel. A mask is the last
// channel of its sample's image, so loaders, samplers and transforms are those of classification;
// transforms/masked.h has what treats the two differently.
#pragma once

#include "dataset.h"
#include "decode/decode_image.h"

namespace tutti::data {

/// The images in ROOT/images with the masks in ROOT/masks of the same names, up to their endings;
/// ROOT/classes.txt has the names of the classes, one on each line, in the order of their numbers.
/// Samples are ordered by name. Masks are PNG files (read_mask).
class SegmentationFolder final : public Dataset {
 public:
  struct Options {
    DecodeOptions decode = {};
    /// The value of pixels without a class.
    std::int64_t ignore_index = 255;
  };
  /// Lists the files and reads the names. Throws a DataError that names the file or folder: one
  /// that is missing, an image without a mask, a mask without an image, two files of one name, no
  /// class or more than 255; and a ValueError for a decode.min_size, which would scale images
  /// alone.
  SegmentationFolder(const std::string& root, Options options);
  explicit SegmentationFolder(const std::string& root) : SegmentationFolder(root, Options{}) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  /// Decodes an image and its mask to uint8 (height, width, decode.channels + 1). The label is 0.
  /// Throws a DataError that names the mask for one of another size than its image, and for a value
  /// that is neither a class nor ignore_index; otherwise as read_image() and read_mask() do.
  Sample get(std::int64_t index) const override;
  std::vector<std::string> class_names() const override { return class_names_; }
  /// Returns the path of the image.
  std::string describe(std::int64_t index) const override;

 private:
  struct Files {
    std::string image, mask;
  };
  void check_values(const Tensor& mask, const std::string& path) const;

  Options options_;
  std::vector<std::string> class_names_;
  std::vector<Files> files_;
};

}  // namespace tutti::data
