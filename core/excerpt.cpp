#include "excerpt.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace tutti {
namespace {

// Returns the number of bytes of the UTF-8 character with which the text begins (RFC 3629); 0 if
// it begins with none.
std::size_t utf8_size(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned char>(i < text.size() ? text[i] : '\0');
  };
  const unsigned char first = byte(0), second = byte(1);
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xc2 ? 0
                           : first < 0xe0 ? 2
                           : first < 0xf0 ? 3
                           : first < 0xf5 ? 4
                                          : 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // These are longer than need be, stand for surrogates, or lie beyond U+10FFFF.
  const bool is_forbidden = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                            (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return is_forbidden ? 0 : size;
}

}  // namespace

std::string excerpt(const std::string& text) {
  constexpr std::size_t limit = 200;
  using Json = nlohmann::ordered_json;
  // Escaping only the part that is shown bounds the work for a text of many megabytes.
  const std::string quoted =
      Json(text.substr(0, limit + 1)).dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string escaped = quoted.substr(1, quoted.size() - 2);
  if (escaped.size() > limit) escaped = escaped.substr(0, limit - 3) + "...";
  return escaped;
}

std::string escape_controls(const std::string& text) {
  std::string escaped;
  for (std::size_t i = 0, size = 0; i < text.size(); i += size) {
    // A byte that is not UTF-8 is shown as Latin-1, where 0x80 to 0x9f are control characters, too.
    size = std::max<std::size_t>(1, utf8_size(std::string_view(text).substr(i)));
    const auto first = static_cast<unsigned char>(text[i]),
               last = static_cast<unsigned char>(text[i + size - 1]);
    const bool is_control = first < 0x20 || first == 0x7f ||
                            (size == 1 && first >= 0x80 && first <= 0x9f) ||
                            (size == 2 && first == 0xc2 && last <= 0x9f);
    if (first == '\n') escaped += "\\n";
    else if (is_control) escaped += fmt::format("\\u{:04x}", last);
    else escaped.append(text, i, size);
  }
  return escaped;
}

bool is_printable(const std::string& text) {
  for (std::size_t i = 0, size = 0; i < text.size(); i += size)
    if (size = utf8_size(std::string_view(text).substr(i)); size == 0) return false;
  return escape_controls(text) == text;
}

std::string to_utf8(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = utf8_size(std::string_view(text).substr(i));
    result += size > 0 ? text.substr(i, size) : "\uFFFD";
    i += std::max<std::size_t>(size, 1);
  }
  return result;
}

}  // namespace tutti
