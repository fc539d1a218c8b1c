#include "mpi_transport.h"

#include "library.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tutti::distributed::mpi {

MpiTransport::MpiTransport(int size) : comm_(MPI_COMM_WORLD, all_ranks(size), 0), size_(size) {
  mpi::check(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  start_receiving();
}

MpiTransport::~MpiTransport() {
  if (is_usable() && receive_ != MPI_REQUEST_NULL) end_receiving();
  for (Sent& sent : sent_) {
    never_free(std::move(sent.message));
    if (is_usable() && sent.request != MPI_REQUEST_NULL) MPI_Request_free(&sent.request);
  }
  if (failed_) comm_.abandon();
}

// A message of this rank to itself ends the receive: MPI_Cancel crashes in some MPI libraries.
void MpiTransport::end_receiving() {
  if (!send_to(rank_, message_of(Kind::end))) return never_free(incoming_);
  while (MPI_Wait(&receive_, MPI_STATUS_IGNORE) == MPI_SUCCESS && incoming_->kind != Kind::end)
    start_receiving();
}

Failure MpiTransport::send_failure(const Failure& failure) {
  const auto message = message_of(Kind::failure, failure.what);
  message->flag = failure.timeout;
  std::memcpy(message->at, failure.at.data(), std::min(failure.at.size(), sizeof(message->at) - 1));
  note_failure(failure);
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) send_to(rank, message);
  return failure;
}

void MpiTransport::send_status_request(int rank) {
  send_to(rank, message_of(Kind::status_request));
}

void MpiTransport::send_status_reply(int rank, const World::StatusReply& reply) {
  const auto message = message_of(Kind::status_reply, reply.latest_calls.text);
  message->flag = reply.has_departed;
  for (std::size_t i = 0; i < reply.latest_calls.sequences.size(); ++i)
    message->latest[i] = {reply.latest_calls.sequences[i].first,
                          reply.latest_calls.sequences[i].second};
  send_to(rank, message);
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
        .at = incoming_->at, .what = incoming_->what, .timeout = incoming_->flag != 0};
    note_failure(failure);
    return failure;
  }
  World::StatusReply reply{status.MPI_SOURCE, {.text = incoming_->what}, incoming_->flag != 0};
  for (const auto& [group, sequence] : incoming_->latest)
    if (group != 0) reply.latest_calls.sequences.emplace_back(group, sequence);
  start_receiving();
  if (kind == Kind::status_request) return World::StatusRequest{reply.rank};
  return reply;
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
      Message{.kind = kind, .flag = 0, .latest = {}, .at = {}, .what = {}});
  std::memcpy(message->what, what.data(), std::min(what.size(), sizeof(message->what) - 1));
  return message;
}

// Does not wait for the message to be received: a process that is gone must not hold up the others.
bool MpiTransport::send_to(int rank, const std::shared_ptr<Message>& message) {
  if (!is_usable()) return false;
  std::erase_if(sent_, [](Sent& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
  });
  const std::size_t bytes = offsetof(Message, what) + std::strlen(message->what) + 1;
  Sent& sent = sent_.emplace_back(message, MPI_REQUEST_NULL);
  return MPI_Isend(message.get(), static_cast<int>(bytes), MPI_BYTE, rank, 0, comm_.get(),
                   &sent.request) == MPI_SUCCESS;
}

void MpiTransport::note_failure(const Failure& failure) {
  failed_ = true;
  if (failure.timeout) note_missing_rank();
}

}  // namespace tutti::distributed::mpi
