// Fuzzes load_safetensors. An input is a header, a zero byte and the data; the target writes the
// header's length in front. An input that begins with '=' is a whole file after that sign.
//
// A file is either refused with a CheckpointError or read. What is read is the same after it was
// saved and read again.
#include "input.h"

#include <tutti/core/state_dict.h>

#include <cstdint>
#include <cstring>

namespace tutti {
namespace {

using test::require;

std::string file_of(const std::string& input) {
  if (input.starts_with('=')) return input.substr(1);
  const std::size_t zero = std::min(input.find('\0'), input.size());
  const std::uint64_t length = zero;
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + input.substr(0, zero) + (zero < input.size() ? input.substr(zero + 1) : "");
}

void require_equal(const StateDict& a, const StateDict& b, const char* when) {
  require(a.size() == b.size(), std::string("another number of tensors ") + when);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& [name, x] = a[i];
    const auto& [other, y] = b[i];
    const std::size_t bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
    require(name == other && x.dtype() == y.dtype() && x.shape() == y.shape() &&
                (bytes == 0 || std::memcmp(x.raw(), y.raw(), bytes) == 0),
            "another tensor '" + name + "' " + when);
  }
}

void check_what_was_read(const StateDict& tensors, const Metadata& metadata,
                         const std::string& copy) {
  save_safetensors(copy, tensors, metadata);
  Metadata again;
  require_equal(tensors, load_safetensors(copy, &again), "after a round trip");
  require(metadata == again, "other metadata after a round trip");
}

void read(const std::string& input) {
  static const test::InputFolder folder;
  const std::string path = folder.write("input.safetensors", file_of(input));
  StateDict tensors;
  Metadata metadata;
  if (test::is_read<CheckpointError>(path, [&] { tensors = load_safetensors(path, &metadata); }))
    check_what_was_read(tensors, metadata, folder.path() + "/copy.safetensors");
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
