// MPI communicators with an owner: Communicator, and HostCommunicators, those of a group inside
// each host and between hosts, with the question which ranks share a host.
#pragma once

#include "../../host_layout.h"
#include "../../world.h"

#include <mpi.h>

namespace tutti::distributed::mpi {

/// A communicator that is freed with its owner, unless MPI is not usable any more or a failure left
/// messages in it.
class Communicator {
 public:
  /// Makes a communicator of the ranks `members` of `parent`, in this order. All of them call it.
  /// Where the `world`, if there is one, has failed, the communicator is never freed.
  Communicator(MPI_Comm parent, const std::vector<int>& members, int tag, World* world = nullptr);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  MPI_Comm get() const { return comm_; }
  /// Never frees the communicator: messages of a failed collective may still arrive in it.
  void abandon() { comm_ = MPI_COMM_NULL; }

 private:
  World* world_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Which processes of MPI_COMM_WORLD share a host.
struct Hosts {
  std::vector<int> numbers;  ///< Of each process's host.
  int local_rank = 0;        ///< The number of this process among those of its host.
};

/// Finds the hosts, or those that emulated_ranks_per_host() makes. All processes call it.
Hosts find_hosts();

/// The communicators of a group. Where the group is on one host, there is only one. The group and
/// all that is under way on it share them, and the last of them frees them.
class HostCommunicators {
 public:
  /// Makes the communicators of the ranks `members` of `parent`. All of them call it.
  HostCommunicators(std::shared_ptr<World> world, const std::shared_ptr<const GroupInfo>& info,
                    MPI_Comm parent, const std::vector<int>& members);

  const HostLayout& layout() const { return layout_; }
  const GroupInfo& info() const { return *info_; }
  World& world() const { return *world_; }
  /// The number of the latest collective on which this rank has seen all ranks agree.
  std::int64_t last_agreed() const { return last_agreed_; }
  /// Notes that this rank has seen all ranks agree on a call.
  void note_agreement(const Collective& call) const {
    if (last_agreed_ < call.sequence) last_agreed_ = call.sequence;
  }
  /// How many ranks of each host communicate with other hosts: as many as every host has.
  std::size_t owners() const { return layout_.fewest_ranks(); }
  /// Returns whether this rank does. The first rank of each host, its leader, always does.
  bool is_owner() const { return layout_.index < owners(); }

  MPI_Comm all() const { return all_->get(); }
  /// The ranks of this host, in the order of the layout.
  MPI_Comm host() const { return host_ ? host_->get() : all(); }
  /// The ranks that have this rank's index on their hosts, in the order of the hosts; null where
  /// this rank is no owner or the group is on one host.
  MPI_Comm across_hosts() const { return across_hosts_ ? across_hosts_->get() : MPI_COMM_NULL; }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<const GroupInfo> info_;
  mutable std::atomic<std::int64_t> last_agreed_{0};
  HostLayout layout_;
  std::optional<Communicator> all_, host_, across_hosts_;
};

}  // namespace tutti::distributed::mpi
