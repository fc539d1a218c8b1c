#include "mpi_transport.h"

#include "library.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tutti::distributed::mpi {

MpiTransport::MpiTransport(int size)
    : comm_(MPI_COMM_WORLD, all_ranks(size), 0), channel_(comm_.get(), 0), size_(size) {
  mpi::check(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
}

MpiTransport::~MpiTransport() {
  if (failed_) comm_.abandon();
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

void MpiTransport::send(int rank, const World::Notice& notice) {
  std::shared_ptr<Message> message;
  if (const auto* request = std::get_if<World::StatusRequest>(&notice)) {
    message = message_of(Kind::status_request);
    message->group = request->group_id;
    message->sequence = request->sequence;
    message->hash = request->hash;
  } else if (const auto* reply = std::get_if<World::StatusReply>(&notice)) {
    message = message_of(Kind::status_reply, reply->latest_calls.text);
    message->flag = reply->has_departed;
    message->blocked = process().blocking_calls > 0;
    message->left = reply->left_after.has_value();
    message->sequence = reply->left_after.value_or(0);
    message->group = reply->group_id;
    message->other_call = reply->other_call.value_or(Fingerprint());
    const auto& latest = reply->latest_calls.sequences;
    for (std::size_t i = 0; i < latest.size(); ++i)
      message->latest[i] = {latest[i].first, latest[i].second};
  } else {
    message = message_of(Kind::release);
    message->group = std::get<World::Release>(notice).group_id;
  }
  send_to(rank, message);
}

std::optional<World::Notice> MpiTransport::receive() {
  if (!is_usable()) return Failure{.what = "MPI has been finalised in this process"};
  const std::optional<int> from = channel_.receive(&incoming_, sizeof(incoming_));
  if (!from) return {};
  if (incoming_.kind == Kind::release) return World::Release{*from, incoming_.group};
  if (incoming_.kind == Kind::status_request)
    return World::StatusRequest{*from, incoming_.group, incoming_.sequence, incoming_.hash};
  if (incoming_.kind == Kind::failure) {
    const Failure failure{
        .at = incoming_.at, .what = incoming_.what, .timeout = incoming_.flag != 0};
    note_failure(failure);
    return failure;
  }
  World::StatusReply reply{.rank = *from,
                           .has_departed = incoming_.flag != 0,
                           .is_blocked = incoming_.blocked != 0,
                           .group_id = incoming_.group};
  if (incoming_.left != 0) reply.left_after = incoming_.sequence;
  if (incoming_.other_call.sequence > 0) reply.other_call = incoming_.other_call;
  reply.latest_calls.text = incoming_.what;
  for (const auto& [group, sequence] : incoming_.latest)
    if (group != 0) reply.latest_calls.sequences.emplace_back(group, sequence);
  return reply;
}

void MpiTransport::guard(const std::function<void()>& check) {
  const std::shared_lock mpi(process().usage, std::try_to_lock);
  if (mpi && is_usable()) check();  // which may destroy this object
}

std::shared_ptr<MpiTransport::Message> MpiTransport::message_of(Kind kind,
                                                                const std::string& what) {
  const auto message = std::make_shared<Message>();
  message->kind = kind;
  std::memcpy(message->what, what.data(), std::min(what.size(), sizeof(message->what) - 1));
  return message;
}

void MpiTransport::send_to(int rank, const std::shared_ptr<Message>& message) {
  if (is_usable())
    channel_.send(rank, message, offsetof(Message, what) + std::strlen(message->what) + 1);
}

void MpiTransport::note_failure(const Failure& failure) {
  failed_ = true;
  if (failure.timeout) note_missing_rank();
}

}  // namespace tutti::distributed::mpi
