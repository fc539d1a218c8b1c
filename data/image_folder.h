// ImageFolder is a dataset of image files in one folder for each class, laid out as for
// torchvision's class of this name.
#pragma once

#include "dataset.h"
#include "decode/decode_image.h"

#include <map>
#include <mutex>

namespace tutti::data {

/// What ImageFolder does with a file that cannot be decoded.
enum class BrokenFiles {
  fatal,    ///< get() throws a DataError that names the file
  replaced  ///< get() returns the next file that can be decoded, and notes the broken one
};

/// The images in ROOT/CLASS/**. A class is a folder in ROOT; labels count the classes in the order
/// of their names. The samples are ordered by class, then folder, then file name. Files are images
/// by the endings of their names (.jpg, .jpeg, .jfif, .png, and those of other formats, which get()
/// names and refuses), at any depth; links are followed. Folders and files whose names begin with a
/// '.' do not count. What a file is, is decided by its content.
class ImageFolder final : public Dataset {
 public:
  struct Options {
    DecodeOptions decode = {};
    BrokenFiles broken_files = BrokenFiles::fatal;
  };
  /// A file that could not be decoded.
  struct BrokenFile {
    std::int64_t index = 0;  ///< of the sample
    std::string path;
    std::string reason;
  };

  /// Lists the files; none is opened. Throws a DataError that names the folder if it is missing or
  /// unreadable, has no classes, or has a class without images.
  explicit ImageFolder(const std::string& root, Options options);
  explicit ImageFolder(const std::string& root) : ImageFolder(root, Options{}) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  /// Decodes a file. With BrokenFiles::replaced the sample is that of the next file in the order of
  /// indices, the first one after the last, which is the same for any number of threads and ranks.
  /// Throws a FileError where the system cannot read a file; such a file is not taken for broken.
  Sample get(std::int64_t index) const override;
  std::vector<std::string> class_names() const override { return class_names_; }
  /// Returns the path of the file.
  std::string describe(std::int64_t index) const override;
  /// Returns how many files in the folders are no images by their names; hidden ones do not count.
  std::int64_t other_files() const { return other_files_; }
  /// Returns the files that get() has found broken so far, ordered by index.
  std::vector<BrokenFile> broken_files() const;

 private:
  struct File {
    std::string path;
    std::int64_t label;
  };
  bool is_known_broken(std::size_t index) const;

  Options options_;
  std::vector<std::string> class_names_;
  std::vector<File> files_;
  std::int64_t other_files_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<std::size_t, std::string> broken_;  // the reason for each index
};

}  // namespace tutti::data
