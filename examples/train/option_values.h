// The kinds of values that the trainer's options have: how the command line reads and checks each,
// and how JSON shows it. Only options.cpp, which has the table of the options, includes this file.
#pragma once

#include <tutti/core/did_you_mean.h>
#include <tutti/core/dtype.h>
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
#include <string_view>
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
template <class Number = std::int64_t>
CLI::Validator not_negative_whole() {
  return in_range(Number{0}, std::numeric_limits<Number>::max(), "a whole number of at least 0",
                  "NONNEGATIVE");
}
template <class Number>
CLI::Validator between(Number low, Number high) {
  const std::string range = fmt::format("[{} - {}]", low, high);
  return in_range(low, high, fmt::format("a number from {} to {}", low, high), "in " + range);
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

inline Value flag(bool& member) {
  return {.add = [&member](CLI::App& app, const std::string& flags,
                           const std::string& help) { return app.add_flag(flags, member, help); },
          .to_json = [&member] { return member; }};
}

// A value whose text `parse` reads and `show` writes. A ValueError becomes the flag's error.
template <class Parse>
Value parsed(const Parse& parse, const std::function<std::string()>& show) {
  return {.add =
              [=](CLI::App& app, const std::string& flags, const std::string& help) {
                const auto read = [flags, parse](const std::string& text) {
                  try {
                    parse(text);
                  } catch (const ValueError& error) {
                    throw CLI::ValidationError(flags, error.what());
                  }
                };
                return app.add_option_function<std::string>(flags, read, help)->default_str(show());
              },
          .to_json = show};
}

template <class T>
using Words = std::vector<std::pair<std::string, T>>;

// Returns the value of a word; the error lists the words, and suggests the one that is meant.
template <class T>
T value_of(const std::string& word, const Words<T>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) {
    if (name == word) return value;
    names.push_back(name);
  }
  const std::span others(names.data(), names.size() - 1);
  fail<ValueError>("expected {} or {}, got {}{}", fmt::join(others, ", "), names.back(), word,
                   did_you_mean(word, names));
}

template <class T>
Value one_of(T& member, const Words<T>& words) {
  const auto show = [words, &member] {
    return std::ranges::find(words, member, &std::pair<std::string, T>::second)->first;
  };
  return parsed([words, &member](const std::string& word) { member = value_of(word, words); },
                show);
}

inline Value name_of(std::string& member, const std::vector<std::string>& names) {
  return plain(member,
               CLI::Validator(
                   [=](const std::string& text) {
                     return std::ranges::find(names, text) != names.end()
                                ? ""
                                : fmt::format("expected one of {}, got {}{}",
                                              fmt::join(names, ", "), text,
                                              did_you_mean(text, names));
                   },
                   ""),
               !member.empty());
}

inline Value precision(DType& member) {
  const Words<DType> words{
      {"float32", float32}, {"bf16", bfloat16}, {"fp16", float16}, {"float64", float64}};
  return parsed([words, &member](const std::string& word) { member = value_of(word, words); },
                [&member] { return to_string(member); });
}

inline Value seconds(std::chrono::milliseconds& member) {
  const auto in_seconds = [&member] { return std::chrono::duration<double>(member).count(); };
  return {.add =
              [=, &member](CLI::App& app, const std::string& flags, const std::string& help) {
                const auto set = [&member](double value) {
                  member = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * value));
                };
                return app.add_option_function<double>(flags, set, help)
                    ->check(between(0.1, 1e6))
                    ->default_str(fmt::format("{}", in_seconds()));
              },
          .to_json = in_seconds};
}

// The ranks that share statistics: world, host, or a number of ranks.
inline Value scope(std::string& member) {
  return parsed(
      [&member](const std::string& text) {
        if (text == "world" || text == "host") member = text;
        else if (const auto ranks = parse_number(text, 1)) member = std::to_string(*ranks);
        else
          fail<ValueError>("expected world, host or a number of ranks, got '{}'{}", text,
                           did_you_mean(text, {"world", "host"}));
      },
      [&member] { return member; });
}

// Epochs in ascending order, as in 30,60,80.
inline Value milestones(std::vector<std::int64_t>& member) {
  const auto parse = [&member](const std::string& text) {
    constexpr std::int64_t most = 1'000'000;  // as --epochs
    std::vector<std::int64_t> epochs;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      const auto epoch = parse_number(std::string_view(text).substr(begin, end - begin),
                                      epochs.empty() ? 1 : epochs.back() + 1, most);
      if (!epoch)
        fail<ValueError>("expected ascending epochs of 1 to {} such as 30,60,80, got '{}'", most,
                         text);
      epochs.push_back(*epoch);
      begin = end + 1;
    }
    member = epochs;
  };
  Value value = parsed(parse, [] { return ""; });
  value.to_json = [&member] { return member; };
  return value;
}

// Patterns, separated by commas or by several flags.
inline Value patterns(std::vector<std::string>& member) {
  return {.add =
              [&member](CLI::App& app, const std::string& flags, const std::string& help) {
                return app.add_option(flags, member, help)
                    ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                    ->delimiter(',');
              },
          .to_json = [&member] { return fmt::format("{}", fmt::join(member, ",")); }};
}

}  // namespace tutti::examples::option_values
