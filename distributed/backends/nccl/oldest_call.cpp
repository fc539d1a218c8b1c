// When a rank compares its oldest call with those of the others, and what it finds.
#include "group_registry.h"

#include <algorithm>

namespace tutti::distributed::nccl {

// To compare means to read the reports of all ranks, which would be too much for many ranks to do
// all the time. Rank 0 begins after a second and each next rank a quarter of a second later,
// because the lower ranks may not wait there or may hang themselves. After each look of a rank its
// time doubles, so that about 8 ranks look in a second, however many wait. At the deadline the
// ranks take turns, because a lower rank may fail the world before the next one has to look.
Clock::time_point GroupRegistry::OldestCall::inspect_from() const {
  using namespace std::chrono_literals;
  const auto timeout = issued_.call.timeout;
  const auto step = std::min<std::chrono::milliseconds>(1s, timeout / 2) / 4;
  const std::int64_t rank = group_.info.rank;
  const auto pause = step * (4 + rank) * (1 << std::min(issued_.looks, 20));
  const auto turn = 100ms * std::min<std::int64_t>(rank, 10);  // two looks of the watcher
  return std::min(deadline_after(pause, *issued_.waiting_since),
                  deadline_after(timeout, *issued_.waiting_since) + turn);
}

PendingState GroupRegistry::OldestCall::pending_state() const {
  const Fingerprint& own = issued_.fingerprint;
  // All ranks have completed what comes before, because it is done on this rank.
  PendingState state{.last_completed = own.sequence - 1};
  const rendezvous::Values states = registry_.store_->list("state/");
  std::vector<Fingerprint> fingerprints;
  for (std::size_t r = 0; r < group_.info.world_ranks.size(); ++r) {
    fingerprints.push_back(own);
    if (static_cast<int>(r) == group_.info.rank) continue;
    const int world_rank = group_.info.world_ranks[r];
    const auto found = states.find(state_key(world_rank));
    auto [latest_calls, reports] = found == states.end() ? std::pair(LatestCalls().text, Reports())
                                                         : decode_state(found->second, world_rank);
    const Report& report = reports[group_.key];
    const bool is_missing = report.last_issued < own.sequence;
    if (is_missing) {
      state.missing.push_back(static_cast<int>(r));
      state.last_completed = std::min(state.last_completed, report.last_issued);
      // A rank whose report did not fit may have issued the collective before it left the group.
      if (report.released != 0) state.departed.push_back(static_cast<int>(r));
    }
    // Errors describe a few ranks.
    if ((is_missing ? state.missing.size() : state.latest_calls.size()) <= 4)
      state.latest_calls.emplace(static_cast<int>(r), latest_calls);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(report.calls, max_fingerprints); ++i)
      if (report.fingerprints[i].sequence == own.sequence)
        fingerprints.back() = report.fingerprints[i];
  }
  state.disagreement = disagreement(fingerprints);
  return state;
}

}  // namespace tutti::distributed::nccl
