#include "excerpt.h"

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

}  // namespace tutti
