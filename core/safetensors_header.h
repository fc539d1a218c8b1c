// The header of a safetensors file (huggingface/safetensors): JSON that names the tensors of the
// file and says which dtype and shape each has and where its bytes lie. This file parses and
// checks the header; state_dict.cpp reads and writes files.
#pragma once

#include "state_dict.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::safetensors {

inline constexpr const char* metadata_key = "__metadata__";
inline constexpr std::uint64_t max_header_bytes = 100'000'000;  // as the reference implementation

/// An Entry holds the values that the header gives for one tensor.
struct Entry {
  std::string name;
  DType dtype = uint8;
  Shape shape = {};
  std::uint64_t begin = 0, end = 0;  ///< Its bytes, counted from the end of the header.
};

struct Header {
  std::vector<Entry> entries;  ///< In the order of the text.
  Metadata metadata;
};

/// Parses and checks the text of a header, in O(n log n) time for n tensors. `data_bytes` is the
/// number of bytes that follow it in the file. Throws a CheckpointError that names the tensor if
/// the format forbids something: text that does not begin with '{', a key that occurs twice, an
/// entry that is incomplete, a size that does not fit dtype and shape, or byte ranges that overlap
/// or do not cover the data exactly. Also for a dtype or a shape that tutti lacks.
Header parse_header(std::string_view text, std::uint64_t data_bytes);

/// Returns the format's name for a dtype of tutti.
const char* name_of(DType dtype);

}  // namespace tutti::safetensors
