#include "did_you_mean.h"

#include <algorithm>
#include <cctype>

namespace tutti {
namespace {

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The optimal string alignment distance. Row i of the table holds the distances between the first i
// characters of `a` and every beginning of `b`; three rows are needed at a time.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool is_same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (is_same ? 0 : 1)});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 100;  // The work grows with the square of the length.
  const std::string* nearest = nullptr;
  std::size_t least = 0;
  for (const std::string& each : known) {
    const std::size_t size = std::max(name.size(), each.size());
    if (size > longest) continue;
    const std::size_t distance = edit_distance(lower_case(name), lower_case(each));
    if (distance * 3 > size || (nearest && distance >= least)) continue;
    nearest = &each;
    least = distance;
  }
  return nearest ? " (did you mean '" + *nearest + "'?)" : "";
}

}  // namespace tutti
