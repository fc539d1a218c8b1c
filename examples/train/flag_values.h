// What a flag's value may be: validators for numbers, and flags whose value is a word. CLI11's own
// validators print the limits of a double with 309 digits.
#pragma once

#include <tutti/core/did_you_mean.h>
#include <tutti/core/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tutti::examples {

// Adds a flag whose text `parse` turns into a value; a ValueError becomes the flag's error.
template <class Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& flag, Parse parse,
                        const std::string& help) {
  return app.add_option_function<std::string>(
      flag,
      [flag, parse](const std::string& text) {
        try {
          parse(text);
        } catch (const ValueError& error) {
          throw CLI::ValidationError(flag, error.what());
        }
      },
      help);
}

// Accepts numbers from `low` to `high`; the error says what was `expected`.
template <class Number>
CLI::Validator in_range(Number low, Number high, const std::string& expected,
                        const std::string& in_help) {
  return CLI::Validator(
      [=](const std::string& text) {
        Number value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc{} && end == text.data() + text.size();
        return whole && value >= low && value <= high
                   ? ""
                   : fmt::format("expected {}, got {}", expected, text);
      },
      in_help);
}

// Accepts the words of a list; the error suggests the word that is meant.
inline CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [=](const std::string& text) {
        return std::ranges::find(words, text) != words.end()
                   ? ""
                   : fmt::format("expected one of {}, got {}{}", fmt::join(words, ", "), text,
                                 did_you_mean(text, words));
      },
      "");
}

// The limits `most` are far above any use, and so low that a product of two does not overflow.
inline CLI::Validator positive(std::int64_t most) {
  return in_range<std::int64_t>(1, most, fmt::format("a positive whole number of at most {}", most),
                                "POSITIVE");
}
inline CLI::Validator positive() {
  return in_range(std::numeric_limits<double>::min(), std::numeric_limits<double>::max(),
                  "a positive number", "POSITIVE");
}
inline CLI::Validator not_negative() {
  return in_range(0.0, std::numeric_limits<double>::max(), "a number of at least 0", "NONNEGATIVE");
}
template <class Number>
CLI::Validator not_negative_whole() {
  return in_range(Number{0}, std::numeric_limits<Number>::max(), "a whole number of at least 0",
                  "NONNEGATIVE");
}
template <class Number>
CLI::Validator between(Number low, Number high) {
  const std::string range = fmt::format("[{} - {}]", low, high);
  return in_range(low, high, fmt::format("a number from {} to {}", low, high), "in " + range);
}

}  // namespace tutti::examples
