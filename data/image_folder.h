// ImageFolder is a dataset of image files in one folder for each class, laid out as for
// torchvision's class of this name.
#pragma once

#include "dataset.h"
#include "decode/decode_image.h"

namespace tutti::data {

/// The images in ROOT/CLASS/**. A class is a folder in ROOT; labels count the classes in the order
/// of their names. The samples are ordered by class, then folder, then file name. Files are images
/// by the endings of their names (.jpg, .jpeg, .jfif, .png, and those of other formats, which get()
/// names and refuses), at any depth; links are followed. Folders and files whose names begin with a
/// '.' do not count. What a file is, is decided by its content.
class ImageFolder final : public Dataset {
 public:
  struct Options {
    DecodeOptions decode = {};
  };

  /// Lists the files; none is opened. Throws a DataError that names the folder if it is missing or
  /// unreadable, has no classes, or has a class without images.
  explicit ImageFolder(const std::string& root, Options options);
  explicit ImageFolder(const std::string& root) : ImageFolder(root, Options{}) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  /// Decodes a file. Throws as read_image() does.
  Sample get(std::int64_t index) const override;
  std::vector<std::string> class_names() const override { return class_names_; }
  /// Returns the path of the file.
  std::string describe(std::int64_t index) const override;
  /// Returns how many files in the folders are no images by their names; hidden ones do not count.
  std::int64_t other_files() const { return other_files_; }

 private:
  struct File {
    std::string path;
    std::int64_t label;
  };

  Options options_;
  std::vector<std::string> class_names_;
  std::vector<File> files_;
  std::int64_t other_files_ = 0;
};

}  // namespace tutti::data
