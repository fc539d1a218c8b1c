// Who is absent from a collective that is not done: what a backend knows about it, which ranks
// World asks, and the texts that name the absent ranks. It neither waits nor asks; World does.
#pragma once

#include "collective.h"

namespace tutti::distributed {

/// What a backend knows about a collective that is not done. Ranks are those of the group.
struct PendingState {
  std::vector<int> missing = {};  ///< The ranks that have not done their part.
  /// Ranks of which it is not known whether they have done their part: each entry is a host, as its
  /// ranks in the group, or a single rank of the own host, which may itself wait for others. The
  /// first rank of an entry is asked at the deadline. Where it does not answer, or answers that it
  /// has not issued this call, all ranks of the entry are missing but those that answer otherwise.
  std::vector<std::vector<int>> hosts_to_ask = {};
  bool asks_all = false;            ///< All of them are asked again and again, and not only a few.
  std::vector<int> departed = {};   ///< World adds those of them that will issue no more calls.
  std::int64_t last_completed = 0;  ///< The last collective that all the missing ranks completed.
  std::string disagreement = {};    ///< Where the ranks are at different calls: both calls.
  bool in_transfer = false;         ///< All ranks had arrived, and their data was being moved.
  bool on_device = false;           ///< Devices wait for it, after the hosts have issued it.
};

/// Errors describe at most so many of the absent ranks.
std::span<const int> first_few(std::span<const int> ranks);

/// Returns the ranks of which the latest calls are asked at a deadline.
std::vector<int> ranks_to_ask(const PendingState& state);

/// Returns the ranks that are missing at a deadline. Where none is, those that were asked may wait
/// for others.
std::vector<int> ranks_to_describe(const PendingState& state);

/// Returns the text for ranks that have departed; `how` is "its process is exiting".
std::string departure(const PendingState& state, const char* how);

/// Returns the text for ranks that are missing at the deadline, as `own_rank` sees them.
std::string absence(const PendingState& state, std::chrono::milliseconds timeout, int own_rank);

}  // namespace tutti::distributed
