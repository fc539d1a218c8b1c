#include "html.h"

#include <nlohmann/json.hpp>

namespace tutti::examples {
namespace {

constexpr const char* replacement = "\xEF\xBF\xBD";  // U+FFFD

// Returns the text with U+FFFD in place of everything that is not UTF-8.
std::string to_utf8(const std::string& text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Whether a byte begins a character: the others have the bits 10 in front.
bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::string escape_character(char c) {
  switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    case '\t':
    case '\n': return {c};
    default: return static_cast<unsigned char>(c) < 0x20 ? replacement : std::string(1, c);
  }
}

}  // namespace

std::string escape(const std::string& text) {
  const std::string whole = to_utf8(text);
  std::string out;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    // U+FFFE and U+FFFF are UTF-8, but XML has no such characters.
    const bool is_forbidden = whole.compare(i, 3, "\xEF\xBF\xBE") == 0 ||
                              whole.compare(i, 3, "\xEF\xBF\xBF") == 0;
    out += is_forbidden ? replacement : escape_character(whole[i]);
    if (is_forbidden) i += 2;
  }
  return out;
}

std::string shorten(const std::string& text, std::size_t characters) {
  const std::string whole = to_utf8(text);
  std::size_t seen = 0, keep = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (!begins_character(whole[i])) continue;
    if (++seen == characters) keep = i;
  }
  return seen <= characters ? whole : whole.substr(0, keep) + "\xE2\x80\xA6";
}

}  // namespace tutti::examples
