#include "model_card.h"

#include "../../core/error.h"
#include "../../core/excerpt.h"
#include "../../core/parse_number.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tutti::nn {
namespace {

using Json = nlohmann::json;
constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t most_channels = 1024, largest_side = 16384;

// ---- What fits together, the same for a card to be written (E is ValueError) and one that was
// read (CheckpointError).

std::string quoted(const std::string& text) { return fmt::format("'{}'", excerpt(text)); }

template <class E, class Got>
[[noreturn]] void reject(const char* key, const std::string& expected, const Got& got) {
  fail<E>("model card: expected '{}' to be {}, got {}", key, expected, got);
}

template <class E>
void expect_between(const char* key, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  reject<E>(key,
            most == any ? fmt::format("at least {}", least) : fmt::format("{} to {}", least, most),
            value);
}

template <class E>
void check_class_names(const ModelCard& card) {
  const std::size_t count = card.class_names.size();
  if (count > 0 && count != static_cast<std::size_t>(card.classes))
    reject<E>("class_names", fmt::format("{} names, as 'classes' says, or none", card.classes),
              count);
  for (const std::string& name : card.class_names)
    if (!is_printable(name))
      reject<E>("class_names", "names in UTF-8 without control characters", quoted(name));
}

template <class E>
void check_channel_values(const char* key, const std::vector<double>& values, std::int64_t channels,
                          bool positive) {
  if (values.size() != static_cast<std::size_t>(channels))
    reject<E>(key, fmt::format("{} numbers, one for each channel", channels), values.size());
  for (const double value : values)
    if (!std::isfinite(value) || (positive && value <= 0))
      reject<E>(key, positive ? "finite and positive numbers" : "finite numbers", value);
}

template <class E>
void check(const ModelCard& card) {
  if (card.model.empty() || !is_printable(card.model))
    reject<E>("model", "the name of a network, such as 'resnet50'", quoted(card.model));
  expect_between<E>("classes", card.classes, 1, any);
  expect_between<E>("channels", card.channels, 1, most_channels);
  check_class_names<E>(card);
  check_channel_values<E>("mean", card.mean, card.channels, false);
  check_channel_values<E>("std", card.std, card.channels, true);
  expect_between<E>("input_size", card.input_size, 1, largest_side);
  expect_between<E>("resize_size", card.resize_size, 0, largest_side);
  if (card.resize_size > 0 && card.resize_size < card.input_size)
    reject<E>("resize_size", fmt::format("0 or at least the input_size, {}", card.input_size),
              card.resize_size);
}

// ---- Reading.

const std::string& text(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    fail<CheckpointError>(
        "model card: expected the metadata to have '{}', but they do not; a weights file gets its "
        "card from ModelCard::to_metadata() or examples/import_torchvision.py",
        key);
  return found->second;
}

std::int64_t integer(const Metadata& metadata, const char* key) {
  const std::string& digits = text(metadata, key);
  const auto value = parse_number<std::int64_t>(digits);
  if (!value) reject<CheckpointError>(key, "a whole number", quoted(digits));
  return *value;
}

// Parses a JSON array of at most `most` values. A longer or nested one is refused while it is
// parsed, because the tree of a hostile text would take many times its memory.
Json array(const Metadata& metadata, const char* key, const char* elements, std::int64_t most) {
  const std::string& json = text(metadata, key);
  std::int64_t count = 0;
  const auto limit = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool is_nested = event == Json::parse_event_t::object_start ||
                           (event == Json::parse_event_t::array_start && depth > 0);
    if (is_nested) reject<CheckpointError>(key, elements, quoted(json));
    if (event == Json::parse_event_t::value && ++count > most)
      reject<CheckpointError>(key, fmt::format("{}, at most {}", elements, most), "more");
    return true;
  };
  try {
    if (Json values = Json::parse(json, limit); values.is_array()) return values;
  } catch (const Json::exception&) {  // reported below
  }
  reject<CheckpointError>(key, elements, quoted(json));
}

// Returns the elements of a JSON array, for each of which `is_kind` must be true.
template <class T>
std::vector<T> values(const Metadata& metadata, const char* key, const char* elements,
                      bool (Json::*is_kind)() const noexcept, std::int64_t most) {
  std::vector<T> result;
  for (const Json& value : array(metadata, key, elements, most)) {
    if (!(value.*is_kind)()) reject<CheckpointError>(key, elements, std::string(value.type_name()));
    result.push_back(value.get<T>());
  }
  return result;
}

std::vector<double> numbers(const Metadata& metadata, const char* key, std::int64_t most) {
  return values<double>(metadata, key, "a JSON array of numbers", &Json::is_number, most);
}

}  // namespace

Metadata ModelCard::to_metadata() const {
  check<ValueError>(*this);
  return {{"model", model},
          {"classes", std::to_string(classes)},
          {"channels", std::to_string(channels)},
          {"class_names", Json(class_names).dump()},
          {"mean", Json(mean).dump()},
          {"std", Json(std).dump()},
          {"resize_size", std::to_string(resize_size)},
          {"input_size", std::to_string(input_size)}};
}

ModelCard ModelCard::from_metadata(const Metadata& metadata) {
  ModelCard card;
  card.model = text(metadata, "model");
  card.classes = integer(metadata, "classes");
  card.channels = integer(metadata, "channels");
  expect_between<CheckpointError>("classes", card.classes, 1, any);
  expect_between<CheckpointError>("channels", card.channels, 1, most_channels);
  card.class_names = values<std::string>(metadata, "class_names", "a JSON array of strings",
                                         &Json::is_string, card.classes);
  card.mean = numbers(metadata, "mean", card.channels);
  card.std = numbers(metadata, "std", card.channels);
  card.resize_size = integer(metadata, "resize_size");
  card.input_size = integer(metadata, "input_size");
  check<CheckpointError>(card);
  return card;
}

StateDict weights_of(const StateDict& file) {
  const std::string model = "model.", average = ".average.";
  std::map<std::string, Tensor> weights;
  bool is_run = false;  // has the random numbers of ranks beside the network
  for (const auto& [name, tensor] : file) {
    is_run = is_run || name == "random";
    if (name.starts_with(model)) weights[name.substr(model.size())] = tensor;
  }
  if (!is_run || weights.empty()) return file;
  for (const auto& [name, tensor] : file) {
    const std::size_t at = name.find(average);
    if (at == std::string::npos) continue;
    if (const auto found = weights.find(name.substr(at + average.size())); found != weights.end())
      found->second = tensor;
  }
  return {weights.begin(), weights.end()};
}

}  // namespace tutti::nn
