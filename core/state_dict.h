// StateDict: named tensors in a stated order, the form in which modules and optimizers hand out
// their state, and its file format, safetensors (an 8-byte length, a JSON header, raw little-endian
// tensors; the format of huggingface/safetensors), which PyTorch users can read and write too.
#pragma once

#include "tensor.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// Free text stored beside the tensors ("epoch": "3").
using Metadata = std::map<std::string, std::string>;

/// Writes the tensors, row-major, to a temporary file beside `path` and renames it: `path` is
/// either the old file or the whole new one. CheckpointError where it cannot be written or a name
/// occurs twice.
void save_safetensors(const std::string& path, const StateDict& tensors,
                      const Metadata& metadata = {});

/// Reads the tensors (on the CPU). CheckpointError, naming the file and the tensor, where the file
/// is absent, truncated, not safetensors, or claims a dtype, shape or range that does not add up.
StateDict load_safetensors(const std::string& path, Metadata* metadata = nullptr);

}  // namespace tutti
