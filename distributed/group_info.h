// GroupInfo: what one rank knows about a process group: its name, its members, this rank's place
// among them and what the backend can do. It holds no state that changes and moves no data.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::distributed {

/// How long a rank waits for the others where nothing else is asked for.
inline constexpr std::chrono::milliseconds default_group_timeout{std::chrono::minutes(5)};

/// What a backend can do. Code that depends on a backend asks for these and never for its name.
struct Capabilities {
  /// Collectives may be captured in a CUDA graph.
  bool graph_capture = false;
  /// Reductions are computed in rank order, so their bits equal those of the local backend. A group
  /// on several hosts adds host by host instead.
  bool rank_order_sums = true;
  /// CUDA tensors are passed to the backend as they are; otherwise they are copied through the
  /// host.
  bool cuda_tensors = false;
  /// Work::wait() lets the device wait and not the host, so it may return before the result is
  /// there, and an error that comes later is thrown by the group's next call.
  bool device_waits = false;
  /// A group of one rank issues its collectives too, instead of doing nothing.
  bool issues_alone = false;
};

/// A rank's position in a group, and the group's name and backend.
struct GroupInfo {
  int rank = 0;  ///< -1 for a rank that split() put into no group; then `size` is 0.
  int size = 1;
  int local_rank = 0;            ///< The number of this rank among the ranks of its host.
  std::string group = "single";  ///< The group's name: "world", "world/split0", ...
  /// "local", "mpi" or "nccl" (backends.h); "single", or "none" for a rank in no group.
  std::string backend = "single";
  std::chrono::milliseconds timeout = default_group_timeout;
  Capabilities capabilities = {};
  std::vector<int> world_ranks = {0};  ///< The rank in the world of each member.
  /// The number of each member's host: members with equal numbers share one. Empty where the
  /// backend does not distinguish hosts.
  std::vector<int> hosts = {};
  /// A hash that is the same on every member and of no other group of the world, though names may
  /// repeat. Backend sets it where the group belongs to a World.
  std::uint64_t id = 0;
};

}  // namespace tutti::distributed
