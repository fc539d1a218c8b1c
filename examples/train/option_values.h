// The kinds of values that the trainer's options have: how the command line reads and checks each,
// and how JSON shows it. Only options.cpp, which has the table of the options, includes this file.
#pragma once

#include <tutti/core/device.h>
#include <tutti/core/did_you_mean.h>
#include <tutti/core/error.h>
#include <tutti/core/parse_number.h>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti::examples::option_values {

using Json = nlohmann::ordered_json;

// How the command line sets the member of an option, and how JSON shows it.
struct Value {
  std::function<CLI::Option*(CLI::App&, const std::string& flags, const std::string& help)> add;
  std::function<Json()> to_json;
};

// ---- Ranges of numbers. CLI11's own validators print the limits of a double with 309 digits.

// Accepts numbers from `low` to `high`; the error says what was `expected`.
template <class Number>
CLI::Validator in_range(Number low, Number high, const std::string& expected,
                        const std::string& in_help) {
  return CLI::Validator(
      [=](const std::string& text) {
        return parse_number(text, low, high) ? ""
                                             : fmt::format("expected {}, got {}", expected, text);
      },
      in_help);
}

// The limits `most` are far above any use, and so low that a product of two does not overflow.
template <class Number>
CLI::Validator between(Number low, Number high) {
  return in_range(low, high, fmt::format("a number from {} to {}", low, high),
                  fmt::format("in [{} - {}]", low, high));
}
inline CLI::Validator positive(std::int64_t most) { return between<std::int64_t>(1, most); }
inline CLI::Validator positive() {
  return in_range(std::numeric_limits<double>::min(), std::numeric_limits<double>::max(),
                  "a positive number", "POSITIVE");
}
template <class Number = double>
CLI::Validator not_negative() {
  return in_range(
      Number{0}, std::numeric_limits<Number>::max(),
      std::is_integral_v<Number> ? "a whole number of at least 0" : "a number of at least 0",
      "NONNEGATIVE");
}

// Returns what is wrong with a text that should be one of the words, with the one that is meant;
// empty for one of them.
inline std::string error_of_word(const std::string& text, const std::vector<std::string>& words) {
  if (std::ranges::count(words, text) > 0) return {};
  const std::span others(words.data(), words.size() - 1);
  return fmt::format("expected {} or {}, got {}{}", fmt::join(others, ", "), words.back(), text,
                     did_you_mean(text, words));
}

// ---- Values of options

// A text or a number that CLI11 reads. A default that depends on other options is not shown.
template <class T>
Value plain(T& member, const CLI::Validator& range, bool shows_default = true) {
  return {.add =
              [=, &member](CLI::App& app, const std::string& flags, const std::string& help) {
                CLI::Option* const option = app.add_option(flags, member, help)->check(range);
                return shows_default ? option->capture_default_str() : option;
              },
          .to_json = [&member] { return member; }};
}
inline Value path(std::string& member) { return plain(member, CLI::Validator(), false); }
inline Value name_of(std::string& member, const std::vector<std::string>& names) {
  return plain(
      member,
      CLI::Validator([=](const std::string& text) { return error_of_word(text, names); }, ""));
}

inline Value flag(bool& member) {
  return {.add = [&member](CLI::App& app, const std::string& flags,
                           const std::string& help) { return app.add_flag(flags, member, help); },
          .to_json = [&member] { return member; }};
}

// A value that `set` makes from a text, and as which `show` shows the member. A ValueError of `set`
// becomes the flag's error.
template <class Set, class Show>
Value converted(const Set& set, const Show& show) {
  return {.add =
              [=](CLI::App& app, const std::string& flags, const std::string& help) {
                const auto read = [set, flags](const std::string& text) {
                  try {
                    set(text);
                  } catch (const ValueError& error) {
                    throw CLI::ValidationError(flags, error.what());
                  }
                };
                return app.add_option_function<std::string>(flags, read, help)
                    ->default_str(fmt::format("{}", show()));
              },
          .to_json = show};
}

template <class T>
Value one_of(T& member, const std::vector<std::pair<std::string, T>>& words) {
  const auto set = [words, &member](const std::string& text) {
    std::vector<std::string> names;
    for (const auto& [name, value] : words) names.push_back(name);
    if (const std::string error = error_of_word(text, names); !error.empty())
      throw ValueError(error);
    member = std::ranges::find(words, text, &std::pair<std::string, T>::first)->second;
  };
  return converted(set, [words, &member] {
    return std::ranges::find(words, member, &std::pair<std::string, T>::second)->first;
  });
}

inline Value device(Device& member) {
  return converted([&member](const std::string& text) { member = Device::from_string(text); },
                   [&member] { return to_string(member); });
}

inline Value seconds(std::chrono::milliseconds& member) {
  const auto set = [&member](const std::string& text) {
    const auto value = parse_number(text, 0.1, 1e6);
    if (!value) fail<ValueError>("expected a number from 0.1 to 1000000, got {}", text);
    member = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * *value));
  };
  return converted(set, [&member] { return std::chrono::duration<double>(member).count(); });
}

// The ranks that share statistics: world, host, or a number of ranks.
inline Value scope(std::string& member) {
  const auto set = [&member](const std::string& text) {
    if (text != "world" && text != "host" && !parse_number(text, 1))
      fail<ValueError>("expected world, host or a number of ranks, got '{}'{}", text,
                       did_you_mean(text, {"world", "host"}));
    member = text;
  };
  return converted(set, [&member] { return member; });
}

// Values that are separated by commas or by several flags.
template <class T>
Value list(std::vector<T>& member, const CLI::Validator& check = CLI::Validator()) {
  return {.add =
              [=, &member](CLI::App& app, const std::string& flags, const std::string& help) {
                return app.add_option(flags, member, help)
                    ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                    ->delimiter(',')
                    ->check(check);
              },
          .to_json = [&member] { return fmt::format("{}", fmt::join(member, ",")); }};
}

}  // namespace tutti::examples::option_values
