#include "mpi_transport.h"

#include "library.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed::mpi {

MpiTransport::MpiTransport(int size) : comm_(MPI_COMM_WORLD, all_ranks(size), 0), size_(size) {
  start_receiving();
}

MpiTransport::~MpiTransport() {
  if (is_usable() && receive_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  }
  if (failed_) comm_.abandon();
}

Failure MpiTransport::send_failure(const Failure& failure) {
  const auto message = std::make_shared<Message>(
      Message{.kind = Kind::failure, .timeout = failure.timeout, .at = {}, .what = {}});
  std::memcpy(message->at, failure.at.data(), std::min(failure.at.size(), sizeof(message->at) - 1));
  std::memcpy(message->what, failure.what.data(),
              std::min(failure.what.size(), sizeof(message->what) - 1));
  note_failure(failure);
  send_to_all(message);
  return failure;
}

void MpiTransport::send_departure() {
  send_to_all(std::make_shared<Message>(
      Message{.kind = Kind::departure, .timeout = 0, .at = {}, .what = {}}));
}

std::optional<World::Notice> MpiTransport::receive() {
  int arrived = 0;
  MPI_Status status;
  check(MPI_Test(&receive_, &arrived, &status), "MPI_Test");
  if (!arrived) return {};
  if (incoming_->kind == Kind::departure) {
    start_receiving();
    return status.MPI_SOURCE;
  }
  const Failure failure{
      .at = incoming_->at, .what = incoming_->what, .timeout = incoming_->timeout != 0};
  note_failure(failure);
  return failure;
}

void MpiTransport::guard(const std::function<void()>& check) {
  const std::shared_lock mpi(usage_mutex(), std::try_to_lock);
  if (mpi && is_usable()) check();  // which may destroy this object
}

void MpiTransport::start_receiving() {
  mpi::check(MPI_Irecv(incoming_.get(), sizeof(Message), MPI_BYTE, MPI_ANY_SOURCE, 0, comm_.get(),
                       &receive_),
             "MPI_Irecv");
}

// Does not wait for the messages to be received: a process that is gone must not hold up the
// others.
void MpiTransport::send_to_all(std::shared_ptr<Message> message) {
  int me = 0;
  MPI_Comm_rank(comm_.get(), &me);
  never_free(message);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == me) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(message.get(), sizeof(Message), MPI_BYTE, rank, 0, comm_.get(), &request) ==
        MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

void MpiTransport::note_failure(const Failure& failure) {
  failed_ = true;
  if (failure.timeout) note_missing_rank();
}

}  // namespace tutti::distributed::mpi
