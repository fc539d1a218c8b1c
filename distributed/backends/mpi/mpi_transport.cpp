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
  const auto message = message_of(Kind::failure, failure.what);
  message->timeout = failure.timeout;
  std::memcpy(message->at, failure.at.data(), std::min(failure.at.size(), sizeof(message->at) - 1));
  note_failure(failure);
  send_to_all(message);
  return failure;
}

void MpiTransport::send_departure(const LatestCalls& latest_calls) {
  send_to_all(message_of(Kind::departure, latest_calls));
}

bool MpiTransport::send_status_request(int rank) {
  send_to(rank, message_of(Kind::status_request));
  return true;
}

void MpiTransport::send_status_reply(int rank, const LatestCalls& latest_calls) {
  send_to(rank, message_of(Kind::status_reply, latest_calls));
}

std::optional<World::Notice> MpiTransport::receive() {
  if (!is_usable()) return Failure{.what = "MPI has been finalised in this process"};
  int arrived = 0;
  MPI_Status status;
  check(MPI_Test(&receive_, &arrived, &status), "MPI_Test");
  if (!arrived) return {};
  const Kind kind = incoming_->kind;
  if (kind == Kind::failure) {
    const Failure failure{
        .at = incoming_->at, .what = incoming_->what, .timeout = incoming_->timeout != 0};
    note_failure(failure);
    return failure;
  }
  LatestCalls calls = latest_calls_of(*incoming_);
  start_receiving();
  const int sender = status.MPI_SOURCE;
  if (kind == Kind::departure) return World::Departure{sender, std::move(calls)};
  if (kind == Kind::status_request) return World::StatusRequest{sender};
  return World::StatusReply{sender, std::move(calls)};
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

std::shared_ptr<MpiTransport::Message> MpiTransport::message_of(Kind kind,
                                                                const std::string& what) {
  const auto message = std::make_shared<Message>(
      Message{.kind = kind, .timeout = 0, .at = {}, .what = {}, .latest = {}});
  std::memcpy(message->what, what.data(), std::min(what.size(), sizeof(message->what) - 1));
  return message;
}

std::shared_ptr<MpiTransport::Message> MpiTransport::message_of(Kind kind,
                                                                const LatestCalls& calls) {
  const auto message = message_of(kind, calls.text);
  for (std::size_t i = 0; i < calls.sequences.size(); ++i)
    message->latest[i] = {calls.sequences[i].first, calls.sequences[i].second};
  return message;
}

LatestCalls MpiTransport::latest_calls_of(const Message& message) {
  LatestCalls calls{.text = message.what};
  for (const auto& [group, sequence] : message.latest)
    if (group != 0) calls.sequences.emplace_back(group, sequence);
  return calls;
}

void MpiTransport::send_to_all(const std::shared_ptr<Message>& message) {
  if (!is_usable()) return;
  int me = 0;
  MPI_Comm_rank(comm_.get(), &me);
  for (int rank = 0; rank < size_; ++rank)
    if (rank != me) send_to(rank, message);
}

// Does not wait for the message to be received: a process that is gone must not hold up the others.
void MpiTransport::send_to(int rank, const std::shared_ptr<Message>& message) {
  never_free(message);
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Isend(message.get(), sizeof(Message), MPI_BYTE, rank, 0, comm_.get(), &request) ==
      MPI_SUCCESS)
    MPI_Request_free(&request);
}

void MpiTransport::note_failure(const Failure& failure) {
  failed_ = true;
  if (failure.timeout) note_missing_rank();
}

}  // namespace tutti::distributed::mpi
