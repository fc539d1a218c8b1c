// Options whose value is a word: its text on the command line and in config.json. Each function
// that reads a word throws a ValueError that lists the words it expects.
#pragma once

#include <tutti/core/dtype.h>
#include <tutti/core/tensor.h>
#include <tutti/data/image_folder.h>
#include <tutti/distributed/data_parallel/join.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::examples {

/// shadow, stop or error.
distributed::Uneven uneven_from_string(const std::string& text);
const char* to_string(distributed::Uneven uneven);
/// float32, float64, bf16 or fp16.
DType precision_from_string(const std::string& text);
/// channels_last or contiguous.
MemoryFormat memory_format_from_string(const std::string& text);
/// fatal or replaced.
data::BrokenFiles broken_files_from_string(const std::string& text);
const char* to_string(data::BrokenFiles broken_files);
/// world, host, or a number of ranks.
std::string sync_bn_scope_from_string(const std::string& text);
/// Epochs in ascending order, as in 30,60,80.
std::vector<std::int64_t> milestones_from_string(const std::string& text);

}  // namespace tutti::examples
