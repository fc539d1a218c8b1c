// HostLayout: which ranks of a group share a host. It follows from GroupInfo without communication.
// Here are also the name of this host and the variable by which tests emulate hosts.
#pragma once

#include "group_info.h"

#include <cstddef>
#include <string>

namespace tutti::distributed {

/// Returns the name of this host.
std::string host_name();

/// Returns the value of the environment variable TUTTI_RANKS_PER_HOST, which makes one machine look
/// like several for tests: so many consecutive ranks of the world each then count as a host.
/// Returns 0 where it is not set. Throws a ValueError where it is no positive number.
int emulated_ranks_per_host();

struct HostLayout {
  /// The ranks of the group on each host, in ascending order. The hosts are in the order of their
  /// lowest ranks, so rank 0 is the first one of host 0.
  std::vector<std::vector<int>> hosts;
  std::size_t host = 0;   ///< The position in `hosts` of this rank's host.
  std::size_t index = 0;  ///< The position of this rank among the ranks of its host.

  explicit HostLayout(const GroupInfo& group);

  bool is_one_host() const { return hosts.size() == 1; }
  /// The ranks on this rank's host.
  const std::vector<int>& own_host() const { return hosts[host]; }
  /// The first rank of a host, its leader, is the one that speaks for the host.
  bool is_leader() const { return index == 0; }
  std::size_t host_of(int rank) const;  ///< The position in `hosts` of the host of a rank.
  std::size_t fewest_ranks() const;     ///< The number of ranks on the host that has the fewest.
  std::size_t most_ranks() const;       ///< The number of ranks on the host that has the most.
};

}  // namespace tutti::distributed
