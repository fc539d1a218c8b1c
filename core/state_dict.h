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
/// that `path` is either the old file or the whole new one. Throws a CheckpointError if a name
/// occurs twice or a tensor is undefined, and a FileError if the file cannot be written.
void save_safetensors(const std::string& path, const StateDict& tensors,
                      const Metadata& metadata = {});

/// Reads the tensors, on the CPU, in the order of the file's header. The time is O(n log n) for n
/// tensors, apart from their data.
///
/// Throws a CheckpointError that names the file and the tensor if the file is absent, truncated,
/// not a regular file or not what the format demands: a header of at most 100 MB that begins with
/// '{', no key twice, dtypes, shapes and byte ranges that fit together, ranges without overlap and
/// holes. Also if a tensor has a dtype or a shape that tutti lacks, or if there is not enough
/// memory. A file that claims huge tensors is refused before they are allocated.
StateDict load_safetensors(const std::string& path, Metadata* metadata = nullptr);

}  // namespace tutti
