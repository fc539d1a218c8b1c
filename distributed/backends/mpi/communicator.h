// MPI communicators with an owner: Communicator, and HostCommunicators, those of a group inside
// each host and between hosts, with the question which ranks share a host.
#pragma once

#include "../../group_info.h"
#include "../../world.h"

#include <mpi.h>

#include <map>

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

/// Finds which processes of MPI_COMM_WORLD share a host, or those that emulated_ranks_per_host()
/// puts together, and sets `hosts` and `local_rank` of the world. All processes call it.
void find_hosts(GroupInfo& world);

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
  /// The inline_limit() of the group, the same on all of its hosts whatever the number of ranks on
  /// this one.
  std::size_t inline_bytes() const { return inline_bytes_; }
  /// The piece_limit() of the group.
  std::size_t piece_bytes() const { return piece_bytes_; }
  /// Into how many slices the ranks cut large data. Each host has an owner of each, which alone
  /// exchanges it with its owners on other hosts.
  std::size_t slices() const { return slices_; }
  /// The index on its host of the owner of a slice. A host with fewer ranks than slices has owners
  /// of several; the first rank, the leader, always owns slice 0.
  std::size_t owner_of(std::size_t slice) const { return slice % layout_.own_host().size(); }

  MPI_Comm all() const { return all_->get(); }
  /// The ranks of this host, in the order of the layout.
  MPI_Comm host() const { return host_ ? host_->get() : all(); }
  /// The owners of a slice of this rank, in the order of the hosts, where there are several hosts.
  MPI_Comm across_hosts(std::size_t slice = 0) const { return across_hosts_.at(slice).get(); }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<const GroupInfo> info_;
  mutable std::atomic<std::int64_t> last_agreed_{0};
  HostLayout layout_;
  std::size_t slices_, inline_bytes_, piece_bytes_;
  std::optional<Communicator> all_, host_;
  std::map<std::size_t, Communicator> across_hosts_;  // by slice
};

}  // namespace tutti::distributed::mpi
