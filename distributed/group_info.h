// GroupInfo: what one rank knows about a process group: its name, its members, this rank's place
// among them and what the backend can do. HostLayout: which of the members share a host, which
// follows from that. Neither holds state that changes or moves data. Here are also the name of this
// host and the variable by which tests emulate hosts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::distributed {

/// How long a rank waits for the others where nothing else is asked for.
inline constexpr std::chrono::milliseconds default_group_timeout{std::chrono::minutes(5)};

/// How the names of the groups for normalization end. Their collectives are small.
inline constexpr std::string_view normalization_suffix = "/normalization";

/// What a group can do with tensors of a device. Code that depends on how they travel asks for
/// these.
struct Capabilities {
  /// Collectives may be captured in a CUDA graph.
  bool graph_capture = false;
  /// Work::wait() lets the device wait and not the host, so it may return before the result is
  /// there, and an error that comes later is thrown by the group's next call.
  bool device_waits = false;
};

/// A rank's position in a group, and the group's name and backend.
struct GroupInfo {
  int rank = 0;  ///< -1 for a rank that split() put into no group; then `size` is 0.
  int size = 1;
  int local_rank = 0;            ///< The number of this rank among the ranks of its host.
  std::string group = "single";  ///< The group's name: "world", "world/split0", ...
  /// "local" or "mpi"; "single", or "none" for a rank in no group.
  std::string backend = "single";
  std::chrono::milliseconds timeout = default_group_timeout;
  Capabilities capabilities = {};  ///< For tensors of the CPU.
  /// Whether a group of one rank issues its collectives too, instead of doing nothing; for tests.
  bool communicates_alone = false;
  std::vector<int> world_ranks = {0};  ///< The rank in the world of each member.
  /// The number of each member's host: members with equal numbers share one. Empty where the
  /// backend does not distinguish hosts.
  std::vector<int> hosts = {};
  /// A hash that is the same on every member and of no other group of the world, though names may
  /// repeat. Backend sets it where the group belongs to a World.
  std::uint64_t id = 0;

  bool is_normalization() const { return group.ends_with(normalization_suffix); }
  int world_rank() const { return world_rank_of(rank); }
  int world_rank_of(int member) const { return world_ranks[static_cast<std::size_t>(member)]; }
};

/// Which ranks of a group share a host. It follows from GroupInfo without communication.
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

/// Returns the name of this host.
std::string host_name();

/// Returns the value of the environment variable TUTTI_RANKS_PER_HOST, which makes one machine look
/// like several for tests: so many consecutive ranks of the world each then count as a host.
/// Returns 0 where it is not set. Throws a ValueError where it is no positive number.
int emulated_ranks_per_host();

}  // namespace tutti::distributed
