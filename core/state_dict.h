// StateDict is an ordered list of named tensors, the form in which modules and optimizers give out
// their state. It is stored in a safetensors file (huggingface/safetensors: an 8-byte length, a
// JSON header, raw little-endian tensors), which PyTorch users can read and write too.
#pragma once

#include "tensor.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// Named tensors, in the order of a module.
using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// Metadata is text that a file stores beside the tensors ("epoch": "3").
using Metadata = std::map<std::string, std::string>;

/// Writes the tensors, in row-major order, to a temporary file beside `path` and renames it, so
/// that `path` is either the old file or the whole new one. Throws a CheckpointError if the file
/// cannot be written or a name occurs twice.
void save_safetensors(const std::string& path, const StateDict& tensors,
                      const Metadata& metadata = {});

/// Reads the tensors, on the CPU. Throws a CheckpointError that names the file and the tensor if
/// the file is absent, truncated or not safetensors, or if a dtype, shape and byte range in it do
/// not fit together.
StateDict load_safetensors(const std::string& path, Metadata* metadata = nullptr);

}  // namespace tutti
