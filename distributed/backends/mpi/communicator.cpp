#include "communicator.h"

#include "library.h"
#include "watchdog.h"

namespace tutti::distributed::mpi {
namespace {

std::string name_members(const std::vector<int>& members) {
  return members.size() <= 16 ? ranks_to_string(members) + " of their parent group"
                              : fmt::format("{} ranks of a group", members.size());
}

}  // namespace

Communicator::Communicator(MPI_Comm parent, const std::vector<int>& members, int tag) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some),
        "MPI_Group_incl");
  int code = MPI_SUCCESS;
  {
    const BlockingCall guard("MPI_Comm_create_group", name_members(members));
    code = MPI_Comm_create_group(parent, some, tag, &comm_);
  }
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check(code, "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Communicator::~Communicator() {
  if (comm_ == MPI_COMM_NULL || !is_usable()) return;
  const BlockingCall guard("MPI_Comm_free", "the other ranks of a group that ends");
  MPI_Comm_free(&comm_);
}

GroupCommunicator::~GroupCommunicator() {
  try {
    if (is_usable() && world().poll()) comm_.abandon();
  } catch (const std::exception&) {
    comm_.abandon();  // an error of MPI counts as a failure
  }
}

}  // namespace tutti::distributed::mpi
