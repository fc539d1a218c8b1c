// A program in which rank 1 fails in a chosen way, and the others print what they get. ctest starts
// it under mpirun, and expects that text and that the job ends. Usage: mpi_faults FAULT. With
// own_mpi, finalizes_*, polls_without_threads, comes_late, *_saves, no_threads,
// returns_errors and model_first no rank fails: the application initialises or finalises MPI, a
// rank is late, or the model comes before the world.
#include "distributed/early_model_case.h"

#include <tutti/core/create.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/process_group.h>

#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

using namespace tutti;
using namespace std::chrono_literals;

// While set, MPI_Testsome returns an error in this process, the cause of which is in a status.
std::atomic<bool> mpi_is_broken{false};
extern "C" int MPI_Testsome(int n, MPI_Request* requests, int* count, int* which,
                            MPI_Status* statuses) {
  if (!mpi_is_broken) return PMPI_Testsome(n, requests, count, which, statuses);
  if (statuses != MPI_STATUSES_IGNORE) {
    *count = 1;
    statuses[0].MPI_ERROR = MPI_ERR_TRUNCATE;
  }
  return MPI_ERR_IN_STATUS;
}

// While set, this process gets no more threads.
std::atomic<bool> has_no_threads{false};
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return has_no_threads ? EAGAIN : real(thread, attributes, run, argument);
}

// While set, the exit of this process is watched: it must send no more messages and cancel nothing.
std::atomic<bool> counts{false};
std::atomic<int> sent{0}, cancelled{0};
extern "C" int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  if (counts) ++sent;
  return PMPI_Isend(data, n, type, to, tag, comm, request);
}
extern "C" int MPI_Cancel(MPI_Request* request) {
  if (counts) ++cancelled;
  return PMPI_Cancel(request);
}
extern "C" int MPI_Finalize() {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // Rank 0 answers the others; these tell rank 0 that they are there, and themselves that they end.
  if (counts && ((rank > 0 && sent > 2) || cancelled > 0))
    std::fprintf(stderr, "rank %d: not done: %d messages and %d cancelled requests at exit\n", rank,
                 sent.load(), cancelled.load());
  return PMPI_Finalize();
}

namespace {

// std::fprintf of glibc 2.37 would let the other rank write in the middle of the text.
void print_caught(int rank, const std::exception& error) {
  std::fputs(fmt::format("rank {} caught: {}\n", rank, error.what()).c_str(), stderr);
}

// Collectives that are still under way when MPI is finalised. Its destructor, which runs after
// that, prints those that were not done.
struct Unwaited {
  std::vector<distributed::Work> works;
  ~Unwaited() {
    for (distributed::Work& work : works) try {
        work.wait();
      } catch (const DistributedError& error) {
        std::fprintf(stderr, "not done: %s\n", error.what());
      }
  }
} unwaited;

// A `timeout` of zero, the group's, is for calls to which all ranks come: on a busy machine two
// processes may come a second apart.
void collective(const ProcessGroup& group, std::int64_t n, std::chrono::milliseconds timeout = {}) {
  group.all_reduce(ones({n}), distributed::ReduceOp::sum, {.name = "layer3", .timeout = timeout})
      .wait();
}

// What rank 1 does instead of its second collective. Where it returns, the rank goes on to that
// collective, with `n` elements.
void misbehave(const ProcessGroup& group, const std::string& fault, std::int64_t& n) {
  if (fault == "stopped" || fault == "misses_split" || fault == "never_exits" ||
      fault == "unwaited")
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

// Two groups have the same name. Rank 0 waits in the first and rank 1 only calls the second.
void use_equal_names(const ProcessGroup& group) {
  const ProcessGroup first = group.split(0), second = group.split(0);
  if (group.rank() == 0) return collective(first, 10, 1s);
  const distributed::Work work = second.all_reduce(ones({10}));
  std::this_thread::sleep_for(15s);  // the launcher ends this process with the other one
}

// Rank 1 initialises MPI, because MPI_Init of rank 0 waits for that, but never calls
// from_environment().
int join_alone() {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) raise(SIGSTOP);
  try {
    ProcessGroup::from_environment(1s);
  } catch (const TimeoutError& error) {
    print_caught(rank, error);
    MPI_Abort(MPI_COMM_WORLD, 3);  // the application has initialised MPI and must end it
  }
  return 0;
}

// The application initialises MPI and finalises it, with a group in between. If the library
// finalised MPI too, that would be an error.
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

// The application finalises MPI while groups and collectives are alive. Whatever is used then is a
// DistributedError, and destroying it does nothing.
int finalize_early(bool initializes) {
  if (initializes) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  int refused = 0, calls = 0;
  const auto expect_refusal = [&](const std::function<void()>& call) {
    ++calls;
    try {
      call();
    } catch (const DistributedError& error) {
      const bool says_why = std::string(error.what()).find("finalised") != std::string::npos;
      if (says_why) ++refused;
      else std::fprintf(stderr, "call %d: %s\n", calls, error.what());
    }
  };
  const ProcessGroup group = ProcessGroup::from_environment(20s), half = group.split(0);
  distributed::Work alone;
  if (group.rank() == 0) alone = half.all_reduce(ones({10}));  // rank 1 never comes to it
  group.barrier();
  const Tensor x = ones({1000000});
  distributed::Work unfinished = group.all_reduce(x);  // MPI_Finalize waits for its end
  MPI_Finalize();
  unfinished.wait();
  if (x.select(0, 999999).item<int>() != 2) return 3;
  if (!alone.is_done()) return 4;
  if (group.rank() == 0) expect_refusal([&] { alone.wait(); });
  for (const ProcessGroup& each : {group, half, group.for_normalization()})
    for (const std::int64_t n : {0, 10, 1000000})
      expect_refusal([&] { each.all_reduce(ones({n})).wait(); });
  expect_refusal([&] { group.barrier(); });
  expect_refusal([&] { group.split(0); });
  expect_refusal([&] { group.split(-1); });
  expect_refusal([&] { half.split_by_host(); });
  expect_refusal([&] { ProcessGroup::from_environment(1s); });
  group.abort("gave up");
  return refused == calls ? 0 : 2;
}

// The application has initialised MPI without threads, so that nobody but the caller carries out a
// collective: is_done() does.
int poll_without_threads() {
  MPI_Init(nullptr, nullptr);
  bool right = true;
  {
    const ProcessGroup group = ProcessGroup::from_environment(20s);
    for (const std::int64_t n : {10, 30000, 1000000}) {
      const Tensor x = ones({n});
      distributed::Work work = group.all_reduce(x);
      while (!work.is_done()) usleep(100);
      right = right && x.select(0, n - 1).item<int>() == 2;
    }
    distributed::Work alone;  // rank 1 never comes, and no watcher keeps the deadline
    if (group.rank() == 0) {
      alone = group.all_reduce(ones({1000000}), distributed::ReduceOp::sum, {.timeout = 500ms});
      while (!alone.is_done()) usleep(100);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return right ? 0 : 2;
}

// Rank 1 calls from_environment() and gives up waiting before rank 0 calls it. Rank 0 is told so,
// and both try again.
int come_late() {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char token = 0;
  const auto is_refused = [&](std::chrono::milliseconds timeout) {
    try {
      ProcessGroup::from_environment(timeout);
    } catch (const DistributedError& error) {
      print_caught(rank, error);
      const char* expected = rank == 0 ? "rank 1 has given up waiting" : "no answer from rank 0";
      return std::string(error.what()).find(expected) != std::string::npos;
    }
    return false;
  };
  if (rank == 0) MPI_Recv(&token, 1, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  bool as_expected = is_refused(rank == 0 ? 20s : 100ms);
  if (rank == 1) MPI_Send(&token, 1, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  {
    const ProcessGroup group = ProcessGroup::from_environment(20s);
    const Tensor x = ones({3});
    group.all_reduce(x).wait();
    as_expected = as_expected && x.select(0, 2).item<int>() == 2;
  }
  MPI_Finalize();
  return as_expected ? 0 : 1;
}

// The system has no thread for communication: the callers carry out their collectives, and what
// nobody has waited for ends with its group.
int do_without_threads() {
  const ProcessGroup group = ProcessGroup::from_environment(20s);
  has_no_threads = true;
  bool right = true;
  for (const std::int64_t n : {10, 1000000}) {
    const Tensor waited = ones({n}), polled = ones({n}), left = ones({1000000});
    distributed::Work work = group.all_reduce(waited);
    std::this_thread::sleep_for(200ms);  // the watcher looks for work that nobody waits for
    work.wait();
    work = group.all_reduce(polled);
    while (!work.is_done()) usleep(100);
    work = group.split(0).all_reduce(left);
    work = {};
    for (const Tensor& x : {waited, polled, left})
      right = right && x.select(0, x.numel() - 1).item<int>() == 2;
  }
  has_no_threads = false;
  return right ? 0 : 2;
}

int make_model_first() {
  test::EarlyModels models;
  const std::string wrong = test::train_early_models(models, ProcessGroup::from_environment(20s));
  std::fputs(wrong.c_str(), stderr);
  return wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  if (fault == "own_mpi") return own_mpi();
  if (fault == "finalizes_early") return finalize_early(true);
  if (fault == "finalizes_for_the_library") return finalize_early(false);
  if (fault == "polls_without_threads") return poll_without_threads();
  if (fault == "never_joins") return join_alone();
  if (fault == "comes_late") return come_late();
  if (fault == "model_first") return make_model_first();
  if (fault == "no_threads") return do_without_threads();
  if (fault == "returns_errors") {
    const ProcessGroup group = ProcessGroup::from_environment(20s);
    return MPI_Send(nullptr, 0, MPI_BYTE, 99, 0, MPI_COMM_WORLD) == MPI_SUCCESS;  // no such rank
  }
  const ProcessGroup group =
      ProcessGroup::from_environment(fault.ends_with("_saves")                           ? 2s
                                     : fault == "misses_split" || fault == "never_exits" ? 3s
                                                                                         : 20s);
  try {
    std::int64_t n = fault == "stopped_in_large" ? 1000000 : 10;
    collective(group, n);
    if (fault == "stopped_in_large" && group.rank() == 1) raise(SIGSTOP);
    if (group.rank() == 1) misbehave(group, fault, n);
    if (fault == "misses_split") group.split(0);
    if (fault == "equal_names") use_equal_names(group);
    if (fault == "leaves_behind") {  // a collective of a group that has no handle any more
      distributed::Work work;
      {
        const ProcessGroup other = group.split(0);
        if (group.rank() == 1) exit(0);
        work = other.all_reduce(ones({n}), distributed::ReduceOp::sum, {.name = "layer3"});
      }
      work.wait();
    }
    if (fault == "mpi_error") mpi_is_broken = group.rank() == 1;
    if (fault == "exits_with_work") {
      for (int i = 0; i < 3; ++i) unwaited.works.push_back(group.all_reduce(ones({1000000})));
      return 0;
    }
    if (fault == "unwaited") {  // no rank waits for it; the next call finds that the world failed
      distributed::Work work =
          group.all_reduce(ones({n}), distributed::ReduceOp::sum, {.name = "early", .timeout = 1s});
      while (!work.is_done()) usleep(1000);
      group.for_normalization().barrier();
    }
    if (fault == fmt::format("rank_{}_saves", group.rank())) {  // longer than the timeout
      std::this_thread::sleep_for(8s);
      std::fprintf(stderr, "saved\n");
    }
    if (fault == "counts_exit") {
      group.barrier();
      counts = true;
      std::this_thread::sleep_for(group.rank() == 0 ? 1s : 0s);
    }
    if (fault.ends_with("_saves") || fault == "counts_exit") return 0;
    if (fault == "never_exits") {
      std::fprintf(stderr, "rank %d is done\n", group.rank());
      return 0;
    }
    collective(group, n, fault.starts_with("stopped") ? 1s : 0s);
    if (fault == "mpi_error") group.barrier();
  } catch (const std::exception& error) {
    mpi_is_broken = false;
    print_caught(group.rank(), error);
    try {
      group.barrier();
    } catch (const DistributedError&) {
      std::fprintf(stderr, "rank %d: the group stays broken\n", group.rank());
    }
    return 3;
  }
  return 0;
}
