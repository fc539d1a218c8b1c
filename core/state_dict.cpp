#include "state_dict.h"

#include "atomic_file.h"
#include "create.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace tutti {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian data");

using Json = nlohmann::ordered_json;
constexpr const char* metadata_key = "__metadata__";
constexpr std::uint64_t max_header = 100'000'000;  // the limit of the reference implementation

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr std::array<DTypeName, 7> dtype_names{{{float32, "F32"},
                                                {float64, "F64"},
                                                {bfloat16, "BF16"},
                                                {float16, "F16"},
                                                {int64, "I64"},
                                                {uint8, "U8"},
                                                {boolean, "BOOL"}}};

const char* name_of(DType dtype) {
  return std::find_if(dtype_names.begin(), dtype_names.end(),
                      [&](auto& d) { return d.dtype == dtype; })
      ->name;
}

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
}

// ---- Reading.

// The header's entry for one tensor. The byte range counts from the end of the header.
struct Entry {
  std::string name;
  DType dtype;
  Shape shape;
  std::uint64_t begin, end;
};

template <class... Args>
[[noreturn]] void reject(const std::string& path, fmt::format_string<Args...> text,
                         Args&&... args) {
  fail<CheckpointError>("load_safetensors: '{}': {}", path,
                        fmt::format(text, std::forward<Args>(args)...));
}

// Parses the JSON header. Refuses a key that occurs twice, which nlohmann accepts silently.
Json parse_header(const std::string& path, const std::string& text) {
  std::set<std::string> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get<std::string>()).second)
      reject(path, "tensor '{}' occurs twice in the header", parsed.get<std::string>());
    return true;
  };
  try {
    Json header = Json::parse(text, check);
    if (!header.is_object()) reject(path, "the header is not a JSON object");
    return header;
  } catch (const Json::exception& error) {
    reject(path, "the header is not JSON ({})", error.what());
  }
}

bool is_unsigned_list(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(),
                                        [](const Json& n) { return n.is_number_unsigned(); });
}

Entry parse_entry(const std::string& path, const std::string& name, const Json& json) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets"))
    reject(path, "tensor '{}': expected an object with dtype, shape and data_offsets", name);
  const Json &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  if (!dtype.is_string()) reject(path, "tensor '{}': dtype is not a string", name);
  const auto known = std::find_if(dtype_names.begin(), dtype_names.end(),
                                  [&](auto& d) { return dtype == d.name; });
  if (known == dtype_names.end())
    reject(path, "tensor '{}': unknown dtype {}; expected F32, F64, BF16, F16, I64, U8 or BOOL",
           name, dtype.dump());
  if (!is_unsigned_list(shape))
    reject(path, "tensor '{}': shape is not a list of sizes: {}", name, shape.dump());
  if (!is_unsigned_list(offsets) || offsets.size() != 2 || offsets[0] > offsets[1])
    reject(path, "tensor '{}': data_offsets are not [begin, end]: {}", name, offsets.dump());

  Entry entry{
      name, known->dtype, {}, offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  std::int64_t bytes = 0;
  try {
    for (const Json& size : shape) entry.shape.push_back(size.get<std::int64_t>());
    if (__builtin_mul_overflow(numel(entry.shape), static_cast<std::int64_t>(size_of(entry.dtype)),
                               &bytes))
      fail<ShapeError>("its bytes overflow 64 bits");
  } catch (const Error& error) {
    reject(path, "tensor '{}': shape {}: {}", name, shape.dump(), error.what());
  }
  if (entry.end - entry.begin != static_cast<std::uint64_t>(bytes))
    reject(path, "tensor '{}': {} {} takes {} bytes, its data_offsets hold {}", name, known->name,
           to_string(entry.shape), bytes, entry.end - entry.begin);
  return entry;
}

// Refuses tensors that do not cover the data exactly: without overlap, without holes, and up to the
// end of the file.
void check_ranges(const std::string& path, const std::vector<Entry>& entries,
                  std::uint64_t data_bytes) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const Entry* entry : sorted) {
    if (entry->end > data_bytes)
      reject(
          path,
          "tensor '{}' ends at byte {} of the data, but there are only {}: the file is truncated",
          entry->name, entry->end, data_bytes);
    if (entry->begin != covered)
      reject(path, "tensor '{}' begins at byte {} of the data, expected {}: {}", entry->name,
             entry->begin, covered,
             entry->begin < covered ? "it overlaps another" : "there is a hole before it");
    covered = entry->end;
  }
  if (covered != data_bytes) reject(path, "{} bytes follow the last tensor", data_bytes - covered);
}

Metadata parse_metadata(const std::string& path, const Json& json) {
  Metadata metadata;
  if (!json.is_object()) reject(path, "{} is not an object of strings", metadata_key);
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) reject(path, "{}: '{}' is not a string", metadata_key, key);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Reads the length at the beginning of the file and returns the text of the header.
std::string read_header(const std::string& path, std::ifstream& file, std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  if (file_bytes < sizeof length || !file.read(reinterpret_cast<char*>(&length), sizeof length))
    reject(path, "{} bytes are too few for a safetensors file", file_bytes);
  if (length > max_header || length > file_bytes - sizeof length)
    reject(path,
           "claims a header of {} bytes in a file of {}: truncated, or not a safetensors file",
           length, file_bytes);
  std::string text(static_cast<std::size_t>(length), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(length))) reject(path, "cannot be read");
  return text;
}

Tensor read_tensor(const std::string& path, std::ifstream& file, std::uint64_t data_begin,
                   const Entry& entry) {
  Tensor tensor = empty(entry.shape, {.dtype = entry.dtype});
  file.seekg(static_cast<std::streamoff>(data_begin + entry.begin));
  if (!file.read(static_cast<char*>(tensor.raw()), static_cast<std::streamsize>(bytes_of(tensor))))
    reject(path, "tensor '{}' cannot be read", entry.name);
  if (entry.dtype == boolean) {
    const auto* bytes = static_cast<const std::uint8_t*>(tensor.raw());
    if (std::any_of(bytes, bytes + tensor.numel(), [](std::uint8_t b) { return b > 1; }))
      reject(path, "tensor '{}': a BOOL is neither 0 nor 1", entry.name);
  }
  return tensor;
}

// ---- Writing.

void check_names(const std::string& path, const StateDict& tensors) {
  std::set<std::string> names{metadata_key};
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second)
      fail<CheckpointError>("save_safetensors: '{}': the name '{}' {}", path, name,
                            name == metadata_key ? "is reserved" : "occurs twice");
    if (!tensor.defined())
      fail<CheckpointError>("save_safetensors: '{}': tensor '{}' is undefined", path, name);
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
  Json header = Json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    Json shape = Json::array();
    for (const std::int64_t size : tensor.shape()) shape.push_back(size);
    header[name] = {{"dtype", name_of(tensor.dtype())},
                    {"shape", std::move(shape)},
                    {"data_offsets", {layout.begins[i], layout.begins[i] + bytes_of(tensor)}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    fail<CheckpointError>("save_safetensors: '{}': a name or the metadata is not UTF-8 ({})", path,
                          error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  check_names(path, tensors);
  const DataLayout layout = data_layout(tensors);
  const std::string header = header_text(path, tensors, metadata, layout);
  try {
    AtomicFile file(path);
    const std::uint64_t length = header.size();
    file.write(&length, sizeof length);
    file.write(header.data(), header.size());
    for (const std::size_t i : layout.order) {
      const Tensor host = tensors[i].second.detach().to(Device::cpu()).contiguous();
      file.write(host.raw(), bytes_of(host));
    }
    file.commit();
  } catch (const Error& error) {
    fail<CheckpointError>("save_safetensors: {}", error.what());
  }
}

StateDict load_safetensors(const std::string& path, Metadata* metadata) {
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error) reject(path, "cannot be read: {}", error.message());
  std::ifstream file(path, std::ios::binary);
  if (!file) reject(path, "cannot be opened: {}", std::strerror(errno));
  const std::string text = read_header(path, file, file_bytes);
  const std::uint64_t data_begin = sizeof(std::uint64_t) + text.size();

  Metadata found;
  std::vector<Entry> entries;
  const Json header = parse_header(path, text);
  for (const auto& [name, json] : header.items())
    if (name == metadata_key) found = parse_metadata(path, json);
    else entries.push_back(parse_entry(path, name, json));
  check_ranges(path, entries, file_bytes - data_begin);

  StateDict tensors;
  for (const Entry& entry : entries)
    tensors.emplace_back(entry.name, read_tensor(path, file, data_begin, entry));
  if (metadata) *metadata = std::move(found);
  return tensors;
}

}  // namespace tutti
