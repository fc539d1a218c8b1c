// MpiTransport: carries failures, departures and the latest calls of ranks between the World
// objects of the processes, over a communicator of its own.
#pragma once

#include "communicator.h"

namespace tutti::distributed::mpi {

class MpiTransport : public World::Transport {
 public:
  /// All processes of MPI_COMM_WORLD call it.
  explicit MpiTransport(int size);
  ~MpiTransport() override;

  Failure send_failure(const Failure& failure) override;
  void send_departure(const LatestCalls& latest_calls) override;
  bool send_status_request(int rank) override;
  void send_status_reply(int rank, const LatestCalls& latest_calls) override;
  std::optional<World::Notice> receive() override;
  /// Checks only while MPI is not being finalised.
  void guard(const std::function<void()>& check) override;

 private:
  enum class Kind : std::int32_t { failure, departure, status_request, status_reply };
  struct Message {
    Kind kind;
    std::int32_t timeout;
    char at[400];
    char what[3200];  // the cause of a failure, or the text of latest calls
    struct {
      std::uint64_t group;  // 0 behind the last
      std::int64_t sequence;
    } latest[LatestCalls::most];
  };
  // A process that exits does not wait until its messages are received, so MPI has to send them
  // eagerly: Open MPI does up to 4096 bytes with its header, within a host.
  static_assert(sizeof(Message) <= 3900);
  static std::shared_ptr<Message> message_of(Kind kind, const std::string& what = {});
  static std::shared_ptr<Message> message_of(Kind kind, const LatestCalls& calls);
  static LatestCalls latest_calls_of(const Message& message);
  void start_receiving();
  void send_to_all(const std::shared_ptr<Message>& message);
  void send_to(int rank, const std::shared_ptr<Message>& message);
  void note_failure(const Failure& failure);

  Communicator comm_;
  int size_;
  bool failed_ = false;
  std::shared_ptr<Message> incoming_ = std::make_shared<Message>();
  MPI_Request receive_ = MPI_REQUEST_NULL;
};

}  // namespace tutti::distributed::mpi
