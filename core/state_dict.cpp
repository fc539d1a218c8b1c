#include "state_dict.h"

#include "atomic_file.h"
#include "control_groups.h"
#include "create.h"
#include "excerpt.h"
#include "file_descriptor.h"
#include "safetensors_header.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <numeric>
#include <set>

namespace tutti {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian data");

using Json = nlohmann::ordered_json;
using safetensors::Entry;
using safetensors::metadata_key;

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
}

// ---- Reading.

// A safetensors file that is open for reading. Its size is the one that it had when it was opened.
class Source {
 public:
  explicit Source(const std::string& path) {
    // A pipe without a writer would block without O_NONBLOCK, which regular files ignore.
    file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat status = {};
    if (!file_.is_open() || ::fstat(file_.get(), &status) != 0)
      fail<CheckpointError>("cannot be opened: {}", std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail<CheckpointError>("is not a regular file");
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  std::uint64_t bytes() const { return bytes_; }

  void read(void* to, std::uint64_t begin, std::size_t bytes) const {
    for (char* next = static_cast<char*>(to); bytes > 0;) {
      const ssize_t got = ::pread(file_.get(), next, bytes, static_cast<off_t>(begin));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail<CheckpointError>("cannot be read: {}", std::strerror(errno));
      if (got == 0) fail<CheckpointError>("was truncated while it was read");
      next += got;
      begin += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::size_t>(got);
    }
  }

 private:
  FileDescriptor file_;
  std::uint64_t bytes_ = 0;
};

// Reads the length at the beginning of the file and returns the text of the header.
std::string read_header_text(const Source& source) {
  std::uint64_t length = 0;
  if (source.bytes() == 0) fail<CheckpointError>("the file is empty");
  if (source.bytes() < sizeof length)
    fail<CheckpointError>("{} bytes are too few for a safetensors file", source.bytes());
  source.read(&length, 0, sizeof length);
  const bool is_too_long = length > safetensors::max_header_bytes ||
                           length > source.bytes() - sizeof length;
  const bool is_zip = (length & 0xffff'ffff) == 0x0403'4b50;   // "PK\3\4"
  if (is_zip || (is_too_long && (length & 0xffff) == 0x0280))  // a pickle of protocol 2
    fail<CheckpointError>(
        "is a {}, as torch.save() writes, not a safetensors file; convert it with "
        "examples/import_torchvision.py or safetensors.torch.save_file()",
        is_zip ? "zip archive" : "pickle");
  if (length == 0x206e'6f69'7372'6576)  // "version "
    fail<CheckpointError>("is a pointer of git-lfs, not a safetensors file; run git lfs pull");
  if (is_too_long && (length & 0xff) == '<')
    fail<CheckpointError>("is HTML or XML, as a failed download leaves, not a safetensors file");
  if (is_too_long)
    fail<CheckpointError>(
        "claims a header of {} bytes in a file of {}: truncated, or not a safetensors file", length,
        source.bytes());
  std::string text(static_cast<std::size_t>(length), '\0');
  source.read(text.data(), sizeof length, text.size());
  return text;
}

// Refuses tensors that need more memory than this process can have: a sparse file of a few blocks
// can claim any size, and beyond a container's limit the system would end the process.
void check_memory(std::uint64_t bytes) {
  const std::uint64_t memory = memory_limit();
  if (bytes > memory)
    fail<CheckpointError>("its tensors take {} bytes, but this process can have {} bytes of memory",
                          bytes, memory);
}

Tensor read_tensor(const Source& source, std::uint64_t data_begin, const Entry& entry) {
  Tensor tensor = empty(entry.shape, {.dtype = entry.dtype});
  source.read(tensor.raw(), data_begin + entry.begin, bytes_of(tensor));
  if (entry.dtype == boolean) {
    const auto* bytes = static_cast<const std::uint8_t*>(tensor.raw());
    if (std::any_of(bytes, bytes + tensor.numel(), [](std::uint8_t b) { return b > 1; }))
      fail<CheckpointError>("tensor '{}': a BOOL is neither 0 nor 1", excerpt(entry.name));
  }
  return tensor;
}

StateDict load(const std::string& path, Metadata* metadata) {
  const Source source(path);
  const std::string text = read_header_text(source);
  const std::uint64_t data_begin = sizeof(std::uint64_t) + text.size();
  safetensors::Header header = safetensors::parse_header(text, source.bytes() - data_begin);
  std::uint64_t bytes = 0;  // at most the size of the file, since no tensors overlap
  for (const Entry& entry : header.entries) bytes += entry.end - entry.begin;
  check_memory(bytes);
  StateDict tensors;
  for (const Entry& entry : header.entries)
    tensors.emplace_back(entry.name, read_tensor(source, data_begin, entry));
  if (metadata) *metadata = std::move(header.metadata);
  return tensors;
}

// ---- Writing.

void check_names(const std::string& path, const StateDict& tensors) {
  std::set<std::string> names{metadata_key};
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second)
      fail<CheckpointError>("save_safetensors: '{}': the name '{}' {}", path, excerpt(name),
                            name == metadata_key ? "is reserved" : "occurs twice");
    if (!tensor.defined())
      fail<CheckpointError>("save_safetensors: '{}': tensor '{}' is undefined", path,
                            excerpt(name));
  }
}

// The order in which the data of the tensors is written, and where each tensor begins.
struct DataLayout {
  std::vector<std::size_t> order, begins;
};

// The data is written by falling element size, so that every tensor is aligned.
DataLayout data_layout(const StateDict& tensors) {
  DataLayout layout{std::vector<std::size_t>(tensors.size()),
                    std::vector<std::size_t>(tensors.size())};
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].second.dtype()) > size_of(tensors[b].second.dtype());
  });
  std::size_t end = 0;
  for (const std::size_t i : layout.order)
    layout.begins[i] = std::exchange(end, end + bytes_of(tensors[i].second));
  return layout;
}

// Returns the header, which keeps the order of the state dict, padded to a multiple of 8 bytes.
std::string header_text(const std::string& path, const StateDict& tensors, const Metadata& metadata,
                        const DataLayout& layout) {
  // Members are appended, because operator[] of an ordered object searches all earlier ones.
  Json header = Json::object();
  auto& members = header.get_ref<Json::object_t&>();
  if (!metadata.empty()) members.push_back({metadata_key, Json(metadata)});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    Json shape = Json::array();
    for (const std::int64_t size : tensor.shape()) shape.push_back(size);
    members.push_back(
        {name,
         {{"dtype", safetensors::name_of(tensor.dtype())},
          {"shape", std::move(shape)},
          {"data_offsets", {layout.begins[i], layout.begins[i] + bytes_of(tensor)}}}});
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    fail<CheckpointError>("save_safetensors: '{}': a name or the metadata is not UTF-8 ({})", path,
                          error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > safetensors::max_header_bytes)
    fail<CheckpointError>(
        "save_safetensors: '{}': names, shapes and metadata take a header of {} bytes; the format "
        "allows {}",
        path, text.size(), safetensors::max_header_bytes);
  return text;
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  check_names(path, tensors);
  const DataLayout layout = data_layout(tensors);
  const std::string header = header_text(path, tensors, metadata, layout);
  AtomicFile file(path);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const std::size_t i : layout.order) {
    const Tensor host = tensors[i].second.detach().to(Device::cpu()).contiguous();
    file.write(host.raw(), bytes_of(host));
  }
  file.commit();
}

StateDict load_safetensors(const std::string& path, Metadata* metadata) {
  try {
    return load(path, metadata);
  } catch (const Error& error) {
    fail<CheckpointError>("load_safetensors: '{}': {}", path, error.what());
  } catch (const std::bad_alloc&) {
    fail<CheckpointError>("load_safetensors: '{}': out of memory while its header was read", path);
  }
}

}  // namespace tutti
