// What is found out about the files of a dataset before the first step: those that cannot be used,
// and of segmentation what masks hold and whether sizes fit the network and the crops.
#pragma once

#include "training_data.h"

#include <string>
#include <utility>

namespace tutti::examples {

/// Reads every file of `data.folders` and `data.scenes` with `threads` threads. Returns lines that
/// list those that cannot be used, and their number.
std::pair<std::string, std::size_t> check_files(const TrainingData& data, int threads);

/// Reads some pictures and masks of both parts of `data.scenes`, all of them with
/// options.check_files. Returns lines that say how many pixels each class has in the training
/// masks, and warn of classes without pixels, of masks that are mostly 255, and of crops that are
/// mostly padding; nothing where there are no scenes. Throws a DataError that names a file which
/// cannot be used, unless options.check_files.
std::string look_at_scenes(const TrainOptions& options, const TrainingData& data, int threads);

/// Throws a DataError that names the smallest test picture of `data.scenes` if it is too small for
/// the network.
void check_smallest_test_picture(const TrainOptions& options, const TrainingData& data);

/// Returns the height and width of the largest test picture of `data.scenes`; zeros where there are
/// none.
std::pair<std::int64_t, std::int64_t> largest_test_picture(const TrainingData& data);

}  // namespace tutti::examples
