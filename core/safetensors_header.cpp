#include "safetensors_header.h"

#include "excerpt.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>

namespace tutti::safetensors {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t max_depth = 128;        // as the reference implementation
constexpr std::size_t max_dimensions = 1000;  // bounds the memory of one entry

// An element type of the format that tutti has.
struct ElementType {
  const char* name;
  DType dtype;
};
constexpr std::array<ElementType, 7> element_types{{{"F32", float32},
                                                    {"F64", float64},
                                                    {"BF16", bfloat16},
                                                    {"F16", float16},
                                                    {"I64", int64},
                                                    {"U8", uint8},
                                                    {"BOOL", boolean}}};

std::string all_type_names() {
  std::string names;
  for (const ElementType& type : element_types)
    names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

template <class... Args>
[[noreturn]] void reject(fmt::format_string<Args...> text, Args&&... args) {
  fail<CheckpointError>("{}", fmt::format(text, std::forward<Args>(args)...));
}

std::int64_t to_size(std::uint64_t size) {
  if (size > std::numeric_limits<std::int64_t>::max())
    fail<ShapeError>("a size does not fit into 63 bits");
  return static_cast<std::int64_t>(size);
}

// A RawEntry holds the values of one tensor as the text gives them, before they are checked.
struct RawEntry {
  std::optional<std::string> dtype = {};
  std::optional<std::vector<std::uint64_t>> shape = {}, offsets = {};
};

// Sets dtype and shape of an entry, and compares the bytes that they take with the byte range.
void interpret(Entry& entry, const std::string& dtype, const std::vector<std::uint64_t>& shape) {
  const auto type = std::find_if(element_types.begin(), element_types.end(),
                                 [&](const ElementType& each) { return dtype == each.name; });
  if (type == element_types.end())
    reject("tensor '{}': unknown dtype \"{}\"; expected one of {}", excerpt(entry.name),
           excerpt(dtype), all_type_names());
  entry.dtype = type->dtype;
  std::uint64_t bytes = 1;
  bool overflow = false;
  for (const std::uint64_t size : shape) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  overflow |= __builtin_mul_overflow(bytes, size_of(type->dtype), &bytes);
  const auto shape_text = [&] { return fmt::format("[{}]", fmt::join(shape, ",")); };
  if (overflow)
    reject("tensor '{}': {} of shape {} takes more than 64 bits of bytes", excerpt(entry.name),
           type->name, excerpt(shape_text()));
  if (entry.end - entry.begin != bytes)
    reject("tensor '{}': {} of shape {} takes {} bytes, its data_offsets hold {}",
           excerpt(entry.name), type->name, excerpt(shape_text()), bytes, entry.end - entry.begin);
  try {
    for (const std::uint64_t size : shape) entry.shape.push_back(to_size(size));
    numel(entry.shape);  // throws where a size of 0 hides sizes that overflow together
  } catch (const ShapeError& error) {
    reject("tensor '{}': {} of shape {}: {}", excerpt(entry.name), type->name,
           excerpt(shape_text()), error.what());
  }
}

// Receives the tokens of the header one after the other and keeps only what the format defines. A
// tree of the whole text would take many times its memory.
class HeaderParser final : public nlohmann::json_sax<Json> {
 public:
  Header header;

  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) reject_duplicate(name);
    if (depth() == 1) tensor_ = name;
    if (depth() == 2) field_ = name;
    return true;
  }
  bool string(string_t& text) override {
    if (depth() == 2 && in_metadata()) header.metadata.emplace(field_, std::move(text));
    else if (depth() == 2 && field_ == "dtype") entry_.dtype = std::move(text);
    else refuse_value();
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    auto* const sizes = list();
    if (depth() != 3 || !sizes) return refuse_value();
    if ((*sizes)->size() == max_dimensions)
      reject("tensor '{}': more than {} numbers in {}", excerpt(tensor_), max_dimensions, field_);
    (*sizes)->push_back(number);
    return true;
  }
  bool null() override {
    return (depth() == 1 && in_metadata()) || refuse_value();  // some writers have no metadata
  }
  bool boolean(bool) override { return refuse_value(); }
  bool number_integer(number_integer_t) override { return refuse_value(); }  // a negative one
  bool number_float(number_float_t, const string_t&) override { return refuse_value(); }
  bool binary(binary_t&) override { return refuse_value(); }

  bool start_object(std::size_t) override {
    if (depth() == 1) entry_ = {};
    if (depth() >= 2) refuse_value();
    return open();
  }
  bool end_object() override {
    keys_.pop_back();
    if (depth() == 1 && !in_metadata()) finish_entry();
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth() == 2 && list()) list()->emplace();
    else refuse_value();
    return open();
  }
  bool end_array() override {
    keys_.pop_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    reject("the header is not JSON ({})", excerpt(error.what()));
  }

 private:
  std::size_t depth() const { return keys_.size(); }
  bool in_metadata() const { return tensor_ == metadata_key; }

  // Returns the list that the present key of an entry holds; null for every other key.
  std::optional<std::vector<std::uint64_t>>* list() {
    if (in_metadata()) return nullptr;
    if (field_ == "shape") return &entry_.shape;
    return field_ == "data_offsets" ? &entry_.offsets : nullptr;
  }

  bool open() {
    if (depth() == max_depth) reject("the header is nested deeper than {} levels", max_depth);
    keys_.emplace_back();
    return true;
  }

  // Throws unless the value belongs to a key that the format does not define, which is ignored.
  bool refuse_value() const {
    if (depth() == 1 && in_metadata()) reject("{} is not an object of strings", metadata_key);
    if (depth() == 1) reject_incomplete();
    if (in_metadata()) reject("{}: '{}' is not a string", metadata_key, excerpt(field_));
    if (field_ == "dtype") reject("tensor '{}': dtype is not a string", excerpt(tensor_));
    if (field_ == "shape") reject("tensor '{}': shape is not a list of sizes", excerpt(tensor_));
    if (field_ == "data_offsets")
      reject("tensor '{}': data_offsets are not [begin, end]", excerpt(tensor_));
    return true;
  }
  [[noreturn]] void reject_incomplete() const {
    reject("tensor '{}': expected an object with dtype, shape and data_offsets", excerpt(tensor_));
  }
  [[noreturn]] void reject_duplicate(const std::string& name) const {
    if (depth() == 1 && name == metadata_key) reject("{} occurs twice in the header", metadata_key);
    if (depth() == 1) reject("tensor '{}' occurs twice in the header", excerpt(name));
    reject("{}: the key '{}' occurs twice",
           in_metadata() ? metadata_key : fmt::format("tensor '{}'", excerpt(tensor_)),
           excerpt(name));
  }

  void finish_entry() {
    if (!entry_.dtype || !entry_.shape || !entry_.offsets) reject_incomplete();
    const std::vector<std::uint64_t>& offsets = *entry_.offsets;
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      reject("tensor '{}': data_offsets are not [begin, end]: [{}]", excerpt(tensor_),
             excerpt(fmt::format("{}", fmt::join(offsets, ","))));
    Entry entry{.name = tensor_, .begin = offsets[0], .end = offsets[1]};
    interpret(entry, *entry_.dtype, *entry_.shape);
    header.entries.push_back(std::move(entry));
  }

  // The keys of every open object, for duplicates; an empty set for an open array. They are ordered
  // sets, because colliding keys make hash sets quadratic.
  std::vector<std::set<std::string>> keys_;
  std::string tensor_, field_;  // the present keys of the header and of an object in it
  RawEntry entry_;
};

// Refuses tensors that do not cover the data exactly: without overlap, without holes, and up to the
// end of the file.
void check_ranges(const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const Entry* entry : sorted) {
    if (entry->end > data_bytes)
      reject(
          "tensor '{}' ends at byte {} of the data, but there are only {}: the file is truncated",
          excerpt(entry->name), entry->end, data_bytes);
    if (entry->begin != covered)
      reject("tensor '{}' begins at byte {} of the data, expected {}: {}", excerpt(entry->name),
             entry->begin, covered,
             entry->begin < covered ? "it overlaps another" : "there is a hole before it");
    covered = entry->end;
  }
  if (covered != data_bytes) reject("{} bytes follow the last tensor", data_bytes - covered);
}

// Refuses what the parser would accept: a byte-order mark, other values than objects, zero bytes.
void check_framing(std::string_view text) {
  if (text.empty()) reject("the header is not JSON: it is empty");
  if (text.starts_with("\xef\xbb\xbf"))
    reject("the header begins with a byte-order mark, expected '{{'; write it without one");
  if (text[0] != '{')
    reject("the header is not a JSON object: it begins with '{}', expected '{{'",
           excerpt(std::string(text.substr(0, 1))));
  // The parser takes a zero byte for the end of the text and would ignore what follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    reject("the header is not JSON: byte {} is zero", zero);
}

}  // namespace

Header parse_header(std::string_view text, std::uint64_t data_bytes) {
  check_framing(text);
  HeaderParser parser;
  Json::sax_parse(text.begin(), text.end(), &parser);
  check_ranges(parser.header.entries, data_bytes);
  return std::move(parser.header);
}

const char* name_of(DType dtype) {
  return std::find_if(element_types.begin(), element_types.end(),
                      [&](const ElementType& each) { return each.dtype == dtype; })
      ->name;
}

}  // namespace tutti::safetensors
