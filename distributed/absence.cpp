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
  return state.missing.empty() ? ranks_to_ask(state) : state.missing;
}

std::string departure(const PendingState& state, const char* how) {
  const std::string ranks = ranks_to_string(state.departed);
  if (state.in_transfer)
    return fmt::format("{} stopped in the middle of the transfer: {}", ranks, how);
  return fmt::format("{} will never arrive: {}; {}", ranks, how,
                     last_completed(state.departed, state.last_completed));
}

std::string absence(const PendingState& state, std::chrono::milliseconds timeout, int own_rank) {
  const std::vector<int> asked = ranks_to_ask(state);
  if (asked.empty() || (state.missing.empty() && state.on_device && state.asks_all))
    return fmt::format(
        "all ranks have issued it, but it did not end within {}: a device or the network hangs, or "
        "the devices of some ranks wait in another group",
        to_string(timeout));
  if (state.missing.empty())  // the ranks not asked may be absent
    return fmt::format(
        "{}, for which rank {} waits, {} issued it as far as is known, but it did not end within "
        "{}: another rank is absent, or the network hangs",
        ranks_to_string(asked), own_rank, asked.size() == 1 ? "has" : "have", to_string(timeout));
  const std::string missing = ranks_to_string(state.missing);
  if (state.in_transfer)
    return fmt::format("{} stopped in the middle of the transfer and did not go on within {}",
                       missing, to_string(timeout));
  return fmt::format("{} did not arrive within {}; {}", missing, to_string(timeout),
                     last_completed(state.missing, state.last_completed));
}

}  // namespace tutti::distributed
