#include "job.h"

#include <tutti/distributed/backends/mpi/library.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::simulator {
namespace {

struct Shared {
  bool was_ended, is_complete;
  Time end;
  char waits[8000];
};

// Of the process in which a job runs.
Shared* shared = nullptr;
Outcome* outcomes = nullptr;
std::vector<std::vector<void (*)()>> exit_handlers;
std::vector<std::unique_ptr<distributed::mpi::Process>> processes;

Outcome& own() { return outcomes[this_rank()]; }

template <std::size_t size>
void append(char (&to)[size], const char* text) {
  std::strncat(to, text, size - 1 - std::strlen(to));
}

void run_rank(int rank, const std::function<std::uint64_t(int)>& main) {
  try {
    own().result = main(rank);
    own().state = Outcome::State::succeeded;
  } catch (const std::exception& error) {
    own().state = Outcome::State::failed;
    append(own().error, error.what());
  }
  auto& handlers = exit_handlers[static_cast<std::size_t>(rank)];
  for (; !handlers.empty(); handlers.pop_back()) handlers.back()();
  mark();
  own().has_exited = true;
}

void run_job(const Layout& layout, std::uint64_t seed, Time limit,
             const std::function<std::uint64_t(int)>& main) {
  const int ranks = layout.ranks();
  exit_handlers.resize(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r)
    processes.push_back(std::make_unique<distributed::mpi::Process>());
  start_network(layout);
  run(ranks, seed, limit, [&](int rank) { run_rank(rank, main); });
  for (int r = 0; r < ranks; ++r) {
    outcomes[r].was_stopped = is_frozen(r) && !has_ended(r);
    outcomes[r].peers = peers(r);
    outcomes[r].traffic = traffic(r);
    for (int where = 0; where < 3; ++where)
      outcomes[r].calls[where] = calls(r, static_cast<Fault::Where>(where));
  }
  shared->end = now();
  shared->was_ended = was_ended();
  append(shared->waits, describe_waits().c_str());
  shared->is_complete = true;
}

template <class T>
T* map_shared(std::size_t count) {
  void* const memory =
      mmap(nullptr, sizeof(T) * count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return static_cast<T*>(memory);
}

}  // namespace

Job simulate(const Layout& layout, std::uint64_t seed, Time limit,
             const std::function<std::uint64_t(int)>& main) {
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  shared = map_shared<Shared>(1);
  outcomes = map_shared<Outcome>(ranks);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    // One thread runs at a time, and wakes the next one fifteen times as fast on its own core.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
    // The kernel looks for the thread that a futex wakes in one of some 16 lists. A job has
    // thousands of threads, so it asks for more lists, which Linux grants from 6.16 on.
    prctl(78 /* PR_FUTEX_HASH */, 1 /* PR_FUTEX_HASH_SET_SLOTS */, 4096, 0, 0);
    run_job(layout, seed, limit, main);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Job job{.ranks = {outcomes, outcomes + ranks},
          .was_ended = shared->was_ended,
          .end = shared->end,
          .waits = shared->is_complete
                       ? shared->waits
                       : "the simulator ended with status " + std::to_string(status)};
  munmap(shared, sizeof(Shared));
  munmap(outcomes, sizeof(Outcome) * ranks);
  return job;
}

void mark() {
  if (own().marks < Outcome::most_marks) own().mark[own().marks++] = {now(), traffic(this_rank())};
}

}  // namespace tutti::simulator

// One for each rank, in the place of the library's own.
tutti::distributed::mpi::Process& tutti::distributed::mpi::process() {
  return *tutti::simulator::processes[static_cast<std::size_t>(tutti::simulator::this_rank())];
}

// What would end the process, or speaks for it.
extern "C" {
int __real_atexit(void (*handler)());
int __wrap_atexit(void (*handler)()) {
  const int rank = tutti::simulator::this_rank();
  if (rank < 0) return __real_atexit(handler);
  tutti::simulator::exit_handlers[static_cast<std::size_t>(rank)].push_back(handler);
  return 0;
}
[[noreturn]] void __real__exit(int code);
[[noreturn]] void __wrap__exit(int code) {
  if (tutti::simulator::this_rank() < 0) __real__exit(code);
  tutti::simulator::end_job();
}
int __real_fputs(const char* text, FILE* file);
int __wrap_fputs(const char* text, FILE* file) {
  if (tutti::simulator::this_rank() < 0 || file != stderr) return __real_fputs(text, file);
  tutti::simulator::append(tutti::simulator::own().lines, text);
  return 1;
}
}

// Files of ranks are real, on a disk that may be full.
extern "C" {
ssize_t __real_write(int file, const void* data, size_t bytes);
ssize_t __wrap_write(int file, const void* data, size_t bytes) {
  if (tutti::simulator::this_rank() < 0) return __real_write(file, data, bytes);
  const std::size_t taken = tutti::simulator::write_to_disk(bytes);
  if (taken > 0 || bytes == 0) return __real_write(file, data, taken);
  errno = ENOSPC;
  return -1;
}
int __real_fsync(int file);
int __wrap_fsync(int file) {  // nobody reads the files after a crash of this machine
  return tutti::simulator::this_rank() < 0 ? __real_fsync(file) : 0;
}
}
