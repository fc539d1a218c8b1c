// A library to be loaded with LD_PRELOAD: stops, delays or ends the process inside one call
// of MPI. TUTTI_STOP="RANK CALL COUNT ACTION" names the rank, the call ("start" for the time
// before main()), which of its calls it is, counted from 1, and what happens: stop, sleep
// (for ever), delay (3 s) or exit.
#include "launched.h"

#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>

namespace {

void pass(const std::string& call) {
  static std::atomic<int> calls{0};
  const char* text = std::getenv("TUTTI_STOP");
  const char* own = tutti::test::launched_rank();
  if (!text || !own) return;
  std::istringstream words(text);
  std::string rank, wanted, action;
  int count = 0;
  words >> rank >> wanted >> count >> action;
  if (rank != own || wanted != call || ++calls != count) return;
  if (action == "stop") raise(SIGSTOP);
  if (action == "sleep") sleep(600);
  if (action == "delay") sleep(3);
  if (action == "exit") _exit(0);
}

__attribute__((constructor)) void start() { pass("start"); }

}  // namespace

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  pass("MPI_Init_thread");
  return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  pass("MPI_Comm_split_type");
  return PMPI_Comm_split_type(comm, type, key, info, made);
}

int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  pass("MPI_Comm_create_group");
  return PMPI_Comm_create_group(comm, group, tag, made);
}

int MPI_Comm_free(MPI_Comm* comm) {
  pass("MPI_Comm_free");
  return PMPI_Comm_free(comm);
}

int MPI_Finalize() {
  pass("MPI_Finalize");
  return PMPI_Finalize();
}

int MPI_Abort(MPI_Comm comm, int code) {
  pass("MPI_Abort");
  return PMPI_Abort(comm, code);
}
}
