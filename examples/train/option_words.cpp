#include "option_words.h"

#include <tutti/core/did_you_mean.h>
#include <tutti/core/error.h>

#include <fmt/ranges.h>

#include <charconv>
#include <span>

namespace tutti::examples {
namespace {

using distributed::Uneven;

[[noreturn]] void fail_unknown(const char* what, const std::string& text,
                               const std::vector<std::string>& words) {
  const std::span others(words.data(), words.size() - 1);
  fail<ValueError>("unknown {} '{}': expected {} or {}{}", what, text, fmt::join(others, ", "),
                   words.back(), did_you_mean(text, words));
}

}  // namespace

Uneven uneven_from_string(const std::string& text) {
  if (text == "shadow") return Uneven::shadow;
  if (text == "stop") return Uneven::stop;
  if (text == "error") return Uneven::error;
  fail_unknown("way", text, {"shadow", "stop", "error"});
}

const char* to_string(Uneven uneven) {
  return uneven == Uneven::shadow ? "shadow" : uneven == Uneven::stop ? "stop" : "error";
}

DType precision_from_string(const std::string& text) {
  if (text == "bf16") return bfloat16;
  if (text == "fp16") return float16;
  if (text == "float32" || text == "float64") return dtype_from_string(text);
  fail_unknown("precision", text, {"float32", "bf16", "fp16", "float64"});
}

MemoryFormat memory_format_from_string(const std::string& text) {
  if (text == "channels_last") return MemoryFormat::channels_last;
  if (text == "contiguous") return MemoryFormat::contiguous;
  fail_unknown("memory format", text, {"channels_last", "contiguous"});
}

data::BrokenFiles broken_files_from_string(const std::string& text) {
  if (text == "fatal") return data::BrokenFiles::fatal;
  if (text == "replaced") return data::BrokenFiles::replaced;
  fail_unknown("way", text, {"fatal", "replaced"});
}

const char* to_string(data::BrokenFiles broken_files) {
  return broken_files == data::BrokenFiles::fatal ? "fatal" : "replaced";
}

std::string sync_bn_scope_from_string(const std::string& text) {
  if (text == "world" || text == "host") return text;
  int ranks = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, ranks);
  if (error == std::errc{} && rest == end && ranks > 0) return std::to_string(ranks);
  fail<ValueError>("expected world, host or a number of ranks, got '{}'{}", text,
                   did_you_mean(text, {"world", "host"}));
}

std::vector<std::int64_t> milestones_from_string(const std::string& text) {
  constexpr std::int64_t most = 1'000'000;  // as --epochs
  std::vector<std::int64_t> epochs;
  const char *at = text.data(), *const end = at + text.size();
  for (;;) {
    std::int64_t epoch = 0;
    const auto [rest, error] = std::from_chars(at, end, epoch);
    if (error != std::errc{} || epoch <= (epochs.empty() ? 0 : epochs.back()) || epoch > most)
      break;
    epochs.push_back(epoch);
    if (rest == end) return epochs;
    if (*rest != ',') break;
    at = rest + 1;
  }
  fail<ValueError>("expected ascending epochs of 1 to {} such as 30,60,80, got '{}'", most, text);
}

}  // namespace tutti::examples
