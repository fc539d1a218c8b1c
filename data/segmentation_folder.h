// SegmentationFolder is a dataset of images with masks: the class of each pixel.
#pragma once

#include "dataset.h"
#include "decode/decode_image.h"

#include <utility>

namespace tutti::data {

struct DecodedImage;

/// How masks lie to pictures that EXIF data turn or mirror, where the sizes fit both ways: a square
/// picture, or half a turn. A mask that has EXIF data itself is turned by these.
enum class MaskOrientation {
  by_size,    ///< only sizes decide; get() throws where they do not
  as_stored,  ///< masks follow the picture as its file stores it, and are turned with it
  as_shown    ///< masks follow the picture as programs show it
};

/// The images in ROOT/images with the masks in ROOT/masks of the same names, up to their endings;
/// ROOT/classes.txt has the names of the classes, one on each line, in the order of their numbers.
/// Samples are ordered by name. Masks are PNG files (read_mask).
class SegmentationFolder final : public Dataset {
 public:
  struct Options {
    DecodeOptions decode = {};
    /// The value of pixels without a class.
    std::int64_t ignore_index = 255;
    /// Not read without decode.apply_orientation: pictures and masks then stay as they are stored.
    MaskOrientation mask_orientation = MaskOrientation::by_size;
  };
  /// Lists the files and reads the names. Throws a DataError that names the file or folder: one
  /// that is missing, an image without a mask, a mask without an image, two files of one name, no
  /// class or more than 255; and a ValueError for a decode.min_size, which would scale images
  /// alone.
  SegmentationFolder(const std::string& root, Options options);
  explicit SegmentationFolder(const std::string& root) : SegmentationFolder(root, Options{}) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  /// Decodes an image and its mask. The label is 0.
  /// Throws a DataError that names the mask for one of another size than its image, for a value
  /// that is neither a class nor ignore_index, and for one whose orientation is not known;
  /// otherwise as read_image() and read_mask() do.
  Sample get(std::int64_t index) const override;
  std::vector<std::string> class_names() const override { return class_names_; }
  /// Returns the path of the image.
  std::string describe(std::int64_t index) const override;
  /// Returns the height and width that the beginning of an image's file claims, before EXIF data
  /// turn it, without decoding the image; zeros where no size can be read there.
  std::pair<std::int64_t, std::int64_t> stored_size(std::int64_t index) const;

 private:
  struct Files {
    std::string image, mask;
  };
  std::pair<Tensor, Tensor> make_upright(const DecodedImage& image, const DecodedImage& mask,
                                         const Files& files) const;
  void check_values(const Tensor& mask, const std::string& path) const;

  Options options_;
  std::vector<std::string> class_names_;
  std::vector<Files> files_;
};

}  // namespace tutti::data
