// load_idx() reads the data files of the MNIST family: MNIST, Fashion-MNIST, KMNIST, EMNIST.
#pragma once

#include "dataset.h"

namespace tutti::data {

/// What load_idx() has to know beside the files.
struct IdxOptions {
  std::int64_t classes = 10;  ///< A label is below this.
  /// The names of the classes in the order of the labels; empty if they have none.
  std::vector<std::string> class_names = {};
};

/// Reads FOLDER/PREFIX-images-idx3-ubyte and FOLDER/PREFIX-labels-idx1-ubyte, or the same names
/// with .gz (http://yann.lecun.com/exdb/mnist/) or with "." before "idx". `prefix` is "train" or
/// "t10k". Images have one channel and any size up to 1024 x 1024 pixels. Throws a DataError that
/// names a file which is missing, truncated or corrupt, or has more than a million images; throws a
/// ValueError unless there are 1 to 256 classes, each with a name or none. Memory grows with what a
/// file holds, not with what it claims.
std::shared_ptr<const TensorDataset> load_idx(const std::string& folder, const std::string& prefix,
                                              const IdxOptions& options = {});

}  // namespace tutti::data
