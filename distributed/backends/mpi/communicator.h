// MPI communicators with an owner: Communicator alone, and GroupCommunicator, which is shared by a
// group and everything under way on it.
#pragma once

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

}  // namespace tutti::distributed::mpi
