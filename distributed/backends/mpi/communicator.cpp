#include "communicator.h"

#include "library.h"

namespace tutti::distributed::mpi {

Communicator::Communicator(MPI_Comm parent, const std::vector<int>& members, int tag) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some),
        "MPI_Group_incl");
  const int code = MPI_Comm_create_group(parent, some, tag, &comm_);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check(code, "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Communicator::~Communicator() {
  if (comm_ != MPI_COMM_NULL && is_usable()) MPI_Comm_free(&comm_);
}

GroupCommunicator::~GroupCommunicator() {
  try {
    if (is_usable() && world().poll()) comm_.abandon();
  } catch (const std::exception&) {
    comm_.abandon();  // an error of MPI counts as a failure
  }
}

}  // namespace tutti::distributed::mpi
