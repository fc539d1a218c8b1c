// One fault in one process of a job, and what the others see of it. Run by ctest under mpirun, which expects the text
// that the survivors print and that the job ends. Usage: mpi_faults FAULT; rank 1 is the one at fault. One without a
// fault, own_mpi: MPI is the application's.
#include <tutti/core/create.h>
#include <tutti/distributed/process_group.h>

#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

// The group's timeout where nobody is missing: two processes may well come to a call a second apart on a busy machine.
void collective(const ProcessGroup& group, std::int64_t n, std::chrono::milliseconds timeout = {}) {
  group.all_reduce(ones({n}), distributed::ReduceOp::sum, {.name = "layer3", .timeout = timeout}).wait();
}

// What rank 1 does instead of its second collective. Returns to go on to the collective with `n` elements.
void misbehave(const ProcessGroup& group, const std::string& fault, std::int64_t& n) {
  if (fault == "stopped" || fault == "misses_split" || fault == "never_exits" || fault == "unwaited")
    raise(SIGSTOP);
  if (fault == "killed") raise(SIGKILL);
  if (fault == "exits") _exit(0);
  if (fault == "leaves") exit(0);  // finalises MPI, which waits for the others
  if (fault == "gives_up") {
    group.abort("parameter 'head' got no gradient");
    throw ValueError("gave up");
  }
  if (fault == "differs") n = 100000;
}

// Rank 1 starts MPI, so that rank 0 gets that far, but never comes to from_environment.
int join_alone() {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) raise(SIGSTOP);
  try {
    ProcessGroup::from_environment(1s);
  } catch (const TimeoutError& error) {
    std::fprintf(stderr, "rank %d caught: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 3);  // who initialised MPI has to end it
  }
  return 0;
}

// Who initialised MPI finalises it, whatever groups there were in between. A second finalising would end in an error.
int own_mpi() {
  int provided = 0, finalized = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  bool right = false;
  {
    const ProcessGroup group = ProcessGroup::from_environment(20s);
    const Tensor x = ones({30000});
    group.all_reduce(x).wait();
    right = group.size() == 2 && x.select(0, 29999).item<int>() == 2;
  }
  MPI_Finalized(&finalized);
  if (finalized) return 1;
  MPI_Finalize();
  return right ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  if (fault == "own_mpi") return own_mpi();
  if (fault == "never_joins") return join_alone();
  const ProcessGroup group = ProcessGroup::from_environment(fault == "misses_split" || fault == "never_exits" ? 3s : 20s);
  try {
    std::int64_t n = fault == "stopped_in_large" ? 1000000 : 10;
    collective(group, n);
    if (fault == "stopped_in_large" && group.rank() == 1) raise(SIGSTOP);
    if (group.rank() == 1) misbehave(group, fault, n);
    if (fault == "misses_split") group.split(0);
    if (fault == "unwaited") {  // nobody waits for this one; the next call finds that the group has failed
      const distributed::Work work = group.all_reduce(ones({n}), distributed::ReduceOp::sum, {.name = "early", .timeout = 1s});
      while (!work.is_done()) usleep(1000);
      group.for_normalization().barrier();
    }
    if (fault == "never_exits") {
      std::fprintf(stderr, "rank %d is done\n", group.rank());
      return 0;
    }
    collective(group, n, fault.starts_with("stopped") ? 1s : 0s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d caught: %s\n", group.rank(), error.what());
    try {
      group.barrier();
    } catch (const DistributedError&) {
      std::fprintf(stderr, "rank %d: the group stays broken\n", group.rank());
    }
    return 3;
  }
  return 0;
}
