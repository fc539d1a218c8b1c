// parse_number(): the number that a text consists of, such as an environment variable or an option.
#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace tutti {

/// Returns nothing where the text is no number from `least` to `most` or has something else beside.
template <class T>
std::optional<T> parse_number(std::string_view text, T least = std::numeric_limits<T>::lowest(),
                              T most = (std::numeric_limits<T>::max)()) {
  T value = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || !(value >= least && value <= most)) return {};
  return value;
}

}  // namespace tutti
