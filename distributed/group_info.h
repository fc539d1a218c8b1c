// GroupInfo: what one rank knows about a process group: its name, its members, this rank's place
// among them and what the backend can do. It holds no state that changes and moves no data.
#pragma once

#include <chrono>
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

}  // namespace tutti::distributed
