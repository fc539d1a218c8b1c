#include "excerpt.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti {

std::string excerpt(const std::string& text) {
  constexpr std::size_t limit = 200;
  using Json = nlohmann::json;
  // Escaping only the part that is shown bounds the work for a text of many megabytes.
  const std::string quoted =
      Json(text.substr(0, limit + 1)).dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string escaped = quoted.substr(1, quoted.size() - 2);
  if (escaped.size() > limit) escaped = escaped.substr(0, limit - 3) + "...";
  return escaped;
}

std::string escape_controls(const std::string& text) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]),
               next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    // The control characters from U+0080 to U+009F are two bytes in UTF-8.
    const bool is_two_bytes = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
    if (byte == '\n') escaped += "\\n";
    else if (byte < 0x20 || byte == 0x7f) escaped += fmt::format("\\u{:04x}", byte);
    else if (is_two_bytes) escaped += fmt::format("\\u{:04x}", text[++i] & 0xff);
    else escaped += text[i];
  }
  return escaped;
}

}  // namespace tutti
