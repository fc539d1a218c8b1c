// MPI communicators with an owner: Communicator alone; GroupCommunicator, which is shared by a
// group and everything under way on it; and HostCommunicators, those of a group inside each host
// and between hosts, with the question which ranks share a host.
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
  Communicator(MPI_Comm parent, const std::vector<int>& members, int tag);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  MPI_Comm get() const { return comm_; }
  /// Never frees the communicator: messages of a failed collective may still arrive in it.
  void abandon() { comm_ = MPI_COMM_NULL; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// The state that a group shares with all of its collectives, which may outlive it.
struct SharedGroupData {
  std::shared_ptr<World> world;
  std::shared_ptr<const GroupInfo> info;
  /// The number of the latest collective on which this rank has seen all ranks agree.
  std::atomic<std::int64_t> last_agreed{0};
};

/// One communicator of a group. The group and all that is under way on it share it, and the last of
/// them frees it.
class GroupCommunicator {
 public:
  GroupCommunicator(std::shared_ptr<SharedGroupData> group, MPI_Comm parent,
                    const std::vector<int>& members, int tag)
      : group_(std::move(group)), comm_(parent, members, tag) {}
  /// Abandons the communicator where the world has failed.
  ~GroupCommunicator();
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;

  MPI_Comm get() const { return comm_.get(); }
  SharedGroupData& group() const { return *group_; }
  World& world() const { return *group_->world; }
  const GroupInfo& info() const { return *group_->info; }

 private:
  std::shared_ptr<SharedGroupData> group_;
  Communicator comm_;
};

/// Which processes of MPI_COMM_WORLD share a host.
struct Hosts {
  std::vector<int> numbers;  ///< Of each process's host.
  int local_rank = 0;        ///< The number of this process among those of its host.
};

/// Finds the hosts, or those that emulated_ranks_per_host() makes. All processes call it.
Hosts find_hosts();

/// The communicators of a group. Where the group is on one host, there is only one.
class HostCommunicators {
 public:
  /// Makes the communicators of the ranks `members` of `parent`. All of them call it.
  HostCommunicators(std::shared_ptr<World> world, const std::shared_ptr<const GroupInfo>& info,
                    MPI_Comm parent, const std::vector<int>& members);

  const HostLayout& layout() const { return layout_; }
  const GroupInfo& info() const { return *group_->info; }
  World& world() const { return *group_->world; }
  /// The number of the latest collective on which this rank has seen all ranks agree.
  std::int64_t last_agreed() const { return group_->last_agreed; }
  /// Notes that this rank has seen all ranks agree on a call.
  void note_agreement(const Collective& call) const {
    if (group_->last_agreed < call.sequence) group_->last_agreed = call.sequence;
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
  std::shared_ptr<SharedGroupData> group_;
  HostLayout layout_;
  std::unique_ptr<GroupCommunicator> all_, host_, across_hosts_;
};

}  // namespace tutti::distributed::mpi
