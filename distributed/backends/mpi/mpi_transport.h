// MpiTransport: carries failures, and the latest calls of ranks that are asked for them, between
// the World objects of the processes, over a communicator of its own.
#pragma once

#include "transfers.h"

namespace tutti::distributed::mpi {

class MpiTransport : public World::Transport {
 public:
  /// All processes of MPI_COMM_WORLD call it.
  explicit MpiTransport(int size);
  ~MpiTransport() override;

  Failure send_failure(const Failure& failure) override;
  void send(int rank, const World::Notice& notice) override;
  std::optional<World::Notice> receive() override;
  /// Checks only while MPI is not being finalised.
  void guard(const std::function<void()>& check) override;

 private:
  enum class Kind : std::int32_t { failure, status_request, status_reply, release };
  struct Message {
    Kind kind;
    std::int32_t flag;     // whether a failure is a timeout, or a rank has departed
    std::int32_t blocked;  // whether the rank is in a call that blocks
    std::int32_t left;     // whether it has left the group, after its call `sequence`
    std::uint64_t group;   // in question, and a call of it
    std::int64_t sequence;
    std::uint64_t hash;
    Fingerprint other_call;  // number 0 where there is none
    struct {
      std::uint64_t group;  // 0 behind the last
      std::int64_t sequence;
    } latest[LatestCalls::most];
    char at[400];
    char what[2900];  // the cause of a failure, or the text of latest calls
  };
  // A process that exits does not wait until its messages are received, so MPI has to send them
  // eagerly: Open MPI does up to 4096 bytes with its header, within a host.
  static_assert(sizeof(Message) <= 3900);
  static std::shared_ptr<Message> message_of(Kind kind, const std::string& what = {});
  void send_to(int rank, const std::shared_ptr<Message>& message);
  void note_failure(const Failure& failure);

  Communicator comm_;
  ControlChannel channel_;
  int rank_ = 0, size_;
  bool failed_ = false;
  Message incoming_ = {};
};

}  // namespace tutti::distributed::mpi
