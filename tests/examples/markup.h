// parse_strictly() reads a page as XML, for tests: every element is closed in its order, every
// attribute is quoted and unique, and no character of markup stands alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tutti::test {

struct Markup {
  std::map<std::string, int> elements = {};  ///< how often each occurs
  std::vector<std::pair<std::string, std::string>> attributes = {};
  std::set<std::string> ids = {};
  std::string text = {};  ///< between the elements, with references resolved
};

/// Replaces the five references that XML has by name, and &#39;; a failure of the test for others.
inline std::string resolve(const std::string& text) {
  static const std::map<std::string, char> known{
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '&') {
      out += text[i];
      continue;
    }
    const std::string name = text.substr(i, text.find(';', i) - i + 1);
    EXPECT_TRUE(known.contains(name)) << "a lone & before: " << text.substr(i, 40);
    if (known.contains(name)) out += known.at(name), i += name.size() - 1;
  }
  return out;
}

/// Returns how many characters at the beginning are of a name.
inline std::size_t name_length(const std::string& text) {
  const auto is_of_name = [](unsigned char c) { return std::isalnum(c) || c == '-'; };
  return static_cast<std::size_t>(std::ranges::find_if_not(text, is_of_name) - text.begin());
}

/// Adds the attributes that stand in a tag behind the name of its element.
inline void read_attributes(const std::string& element, std::string rest, Markup& page) {
  std::set<std::string> names;
  while (!rest.empty()) {
    const std::size_t begin = rest.find_first_not_of(" \n"),
                      length = begin > 0 && begin < rest.size() ? name_length(rest.substr(begin))
                                                                : 0,
                      end = rest.find('"', begin + length + 2);
    const bool is_attribute = length > 0 && rest.substr(begin + length, 2) == "=\"" &&
                              end != std::string::npos;
    EXPECT_TRUE(is_attribute) << "in the tag of " << element << ": " << rest.substr(0, 80);
    if (!is_attribute) return;
    const std::string name = rest.substr(begin, length),
                      value = rest.substr(begin + length + 2, end - begin - length - 2);
    EXPECT_TRUE(names.insert(name).second) << "twice in " << element << ": " << name;
    EXPECT_EQ(value.find('<'), std::string::npos) << element;
    page.attributes.emplace_back(name, resolve(value));
    if (name == "id") {
      EXPECT_TRUE(page.ids.insert(value).second) << "twice: id " << value;
    }
    rest = rest.substr(end + 1);
  }
}

/// Parses a page; what is wrong with it is a failure of the test.
inline Markup parse_strictly(const std::string& html) {
  Markup page;
  std::vector<std::string> open;
  const std::string doctype = "<!DOCTYPE html>\n";
  EXPECT_TRUE(html.starts_with(doctype));
  for (std::size_t at = doctype.size(); at < html.size();) {
    const std::size_t begin = html.find('<', at);
    const std::string text = html.substr(at, begin - at);
    EXPECT_EQ(text.find('>'),
              open.empty() || open.back() != "style" ? std::string::npos : text.find('>'));
    page.text += resolve(text) + (text.empty() ? "" : " ");
    if (begin == std::string::npos) break;
    const std::size_t end = html.find('>', begin);
    std::string tag = html.substr(begin + 1, end - begin - 1);
    at = end + 1;
    if (tag.starts_with("/")) {
      EXPECT_EQ("/" + (open.empty() ? "" : open.back()), tag);
      if (!open.empty()) open.pop_back();
      continue;
    }
    const std::string name = tag.substr(0, name_length(tag));
    EXPECT_FALSE(name.empty()) << "a lone < before: " << html.substr(begin, 40);
    if (name.empty()) return page;
    const bool is_closed = tag.ends_with("/");
    if (is_closed) tag.pop_back();
    ++page.elements[name];
    if (!is_closed) open.push_back(name);
    read_attributes(name, tag.substr(name.size()), page);
  }
  EXPECT_TRUE(open.empty()) << "not closed: " << (open.empty() ? "" : open.back());
  return page;
}

}  // namespace tutti::test
