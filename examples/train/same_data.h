// What the ranks of a run, and a run and its resume, must have in common of their data: the classes
// and the images. The content of the files of a folder is not read.
#pragma once

#include "checkpoint.h"
#include "dataset.h"

namespace tutti::examples {

/// Returns the numbers and fingerprints of the training and the test images. The fingerprint of a
/// folder is a hash of the paths of its files, in their order; that of images in memory is a hash
/// of 256 of them and of their labels.
Metadata describe_images(const TrainingData& data);

/// Returns what a checkpoint says about the data of its run: the model card and data.images;
/// nothing for data without these.
Metadata describe_data(const TrainOptions& options, const TrainingData& data);

/// Returns the first difference between the data of a checkpoint and those of this run, which
/// describe_data() has described; empty if they are the same, and for a checkpoint of an earlier
/// version, which does not describe its data.
std::string other_data(const TrainOptions& options, const Checkpoint& from, const Metadata& now);

/// Throws a DataError, with the same text on every rank, unless all ranks have as many training and
/// test images, the same classes and the same fingerprints. Processes on several hosts read copies
/// of the data, which may differ; ranks that are threads share one copy and need no check. Every
/// rank calls it with the whole data. This call is collective.
void expect_same_data(const TrainingData& data, const ProcessGroup& group);

}  // namespace tutti::examples
