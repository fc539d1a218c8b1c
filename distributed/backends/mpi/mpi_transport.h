// MpiTransport: carries failures and departures between the World objects of the processes, over a
// communicator of its own.
#pragma once

#include "communicator.h"

namespace tutti::distributed::mpi {

class MpiTransport : public World::Transport {
 public:
  /// All processes of MPI_COMM_WORLD call it.
  explicit MpiTransport(int size);
  ~MpiTransport() override;

  Failure send_failure(const Failure& failure) override;
  void send_departure() override;
  std::optional<World::Notice> receive() override;
  /// Checks only while MPI is not being finalised.
  void guard(const std::function<void()>& check) override;

 private:
  enum class Kind : std::int32_t { failure, departure };
  struct Message {
    Kind kind;
    std::int32_t timeout;
    char at[300];
    char what[1200];
  };
  void start_receiving();
  void send_to_all(std::shared_ptr<Message> message);
  void note_failure(const Failure& failure);

  Communicator comm_;
  int size_;
  bool failed_ = false;
  std::shared_ptr<Message> incoming_ = std::make_shared<Message>();
  MPI_Request receive_ = MPI_REQUEST_NULL;
};

}  // namespace tutti::distributed::mpi
