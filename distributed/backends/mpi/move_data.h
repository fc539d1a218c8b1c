// move_data(): the algorithms that move and reduce large tensors, point to point. In an all-reduce
// rank r receives the r-th part of every rank's tensor, reduces it in rank order and sends the
// result to every rank: each element travels twice, and all ranks get the same bits.
#pragma once

#include "communicator.h"

namespace tutti::distributed::mpi {

/// Moves the data of a call on which all ranks agree. Throws, and fails the world, where a rank
/// does not go on within the call's timeout.
void move_data(const GroupCommunicator& comm, const Collective& call);

}  // namespace tutti::distributed::mpi
