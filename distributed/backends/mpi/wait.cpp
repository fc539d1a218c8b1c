#include "wait.h"

#include "library.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace tutti::distributed::mpi {

void wait(PendingMessages& messages, World& world, bool patient) {
  for (std::int64_t polls = 0; !messages.poll(); ++polls) {
    pause(polls, patient);
    if (polls % 64 != 63 && !patient) continue;
    if (const auto failure = world.poll())
      throw_failure(*failure, messages.call(), messages.group());
    world.give_up(messages);
  }
}

bool all_done(std::vector<MPI_Request>& requests) {
  constexpr std::size_t most = 64;  // at a time: the statuses need no allocation
  for (std::size_t begin = 0; begin < requests.size(); begin += most) {
    int count = 0, finished[most];
    MPI_Status statuses[most];
    const int code = MPI_Testsome(static_cast<int>(std::min(most, requests.size() - begin)),
                                  &requests[begin], &count, finished, statuses);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < count; ++i)
      check(statuses[i].MPI_ERROR, "MPI_Testsome");
    check(code, "MPI_Testsome");
  }
  return std::ranges::all_of(requests, [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

void pause(std::int64_t polls, bool patient) {
  using namespace std::chrono_literals;
  if (patient && polls > 50) std::this_thread::sleep_for(20us);
  else if (polls > 20000) std::this_thread::sleep_for(50us);
  else if (polls > 16) sched_yield();
}

}  // namespace tutti::distributed::mpi
