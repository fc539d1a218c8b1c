#include "absence.h"

#include "../core/error.h"

#include <algorithm>

namespace tutti::distributed {
namespace {

std::string last_completed(std::span<const int> ranks, std::int64_t completed) {
  return fmt::format("{} last completed {}", ranks.size() == 1 ? "it" : "they",
                     completed == 0 ? "none" : fmt::format("#{}", completed));
}

}  // namespace

std::span<const int> first_few(std::span<const int> ranks) {
  return ranks.first(std::min<std::size_t>(ranks.size(), 4));
}

std::vector<int> ranks_to_ask(const PendingState& state) {
  const auto few = first_few(state.missing);
  std::vector<int> ranks(few.begin(), few.end());
  for (const std::vector<int>& host : state.hosts_to_ask) ranks.push_back(host.front());
  return ranks;
}

std::vector<int> ranks_to_describe(const PendingState& state) {
  if (!state.missing.empty()) return state.missing;
  std::vector<int> ranks = ranks_to_ask(state);
  for (const auto& [rank, calls] : state.latest_calls) ranks.push_back(rank);
  return ranks;
}

std::string departure(const PendingState& state, const char* how) {
  const std::string ranks = ranks_to_string(state.departed);
  if (state.in_transfer)
    return fmt::format("{} stopped in the middle of the transfer: {}", ranks, how);
  return fmt::format("{} will never arrive: {}; {}", ranks, how,
                     last_completed(state.departed, state.last_completed));
}

std::string absence(const PendingState& state, std::chrono::milliseconds timeout, int own_rank) {
  if (state.missing.empty() && !state.hosts_to_ask.empty()) {  // the ranks not asked may be absent
    const std::vector<int> asked = ranks_to_ask(state);
    return fmt::format(
        "{}, for which rank {} waits, {} issued it as far as is known, but it did not end within "
        "{}: another rank is absent, or the network hangs",
        ranks_to_string(asked), own_rank, asked.size() == 1 ? "has" : "have", to_string(timeout));
  }
  if (state.missing.empty())
    return fmt::format(
        "all ranks have issued it, but it did not end within {}: a device or the network hangs, or "
        "the devices of some ranks wait in another group",
        to_string(timeout));
  if (state.in_transfer)
    return to_string(
        Absence{state.missing, "stopped in the middle of the transfer and did not go on", timeout});
  return to_string(Absence{.ranks = state.missing, .timeout = timeout}) + "; " +
         last_completed(state.missing, state.last_completed);
}

}  // namespace tutti::distributed
