// load_cifar10() and load_cifar100() read the binary versions of these datasets
// (https://www.cs.toronto.edu/~kriz/cifar.html), from the folders that the archives unpack to.
#pragma once

#include "dataset.h"

namespace tutti::data {

/// The part of a dataset that its authors made for this use.
enum class Split { train, test };

/// Reads CIFAR-10: FOLDER/data_batch_1.bin to data_batch_5.bin, or FOLDER/test_batch.bin. Throws a
/// DataError that names a file which is missing, truncated or corrupt, or has more than 100,000
/// images.
std::shared_ptr<const TensorDataset> load_cifar10(const std::string& folder, Split split);

/// Reads CIFAR-100 with its 100 classes: FOLDER/train.bin or FOLDER/test.bin. The names of the
/// classes come from fine_label_names.txt; they have none if that file is missing. Throws as
/// load_cifar10() does.
std::shared_ptr<const TensorDataset> load_cifar100(const std::string& folder, Split split);

}  // namespace tutti::data
