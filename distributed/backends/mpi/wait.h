// How a thread waits for MPI messages: it polls, keeps the deadline through World, and gives the
// core away between two polls.
#pragma once

#include "communicator.h"

namespace tutti::distributed::mpi {

/// A collective, or a part of one, whose messages have been posted.
class PendingMessages : public PendingCollective {
 public:
  /// Lets MPI make progress. Returns true when all messages have been sent and received. Never
  /// blocks.
  virtual bool poll() = 0;
};

/// Waits until `messages.poll()` returns true. Throws the failure of the world, which this call
/// causes where the deadline passes or a rank departs. A patient wait soon sleeps between polls;
/// any other does so after a while, because several ranks and their communication threads may share
/// few cores.
void wait(PendingMessages& messages, World& world, bool patient);

/// Lets MPI make progress with the requests and returns whether all are done. Throws a
/// DistributedError with the error of a request that has failed.
bool all_done(std::vector<MPI_Request>& requests);

/// Pauses between poll number `polls` of a wait and the next one.
void pause(std::int64_t polls, bool patient);

}  // namespace tutti::distributed::mpi
