#include "wait.h"

#include <sched.h>

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

void pause(std::int64_t polls, bool patient) {
  using namespace std::chrono_literals;
  if (patient && polls > 50) std::this_thread::sleep_for(20us);
  else if (polls > 20000) std::this_thread::sleep_for(50us);
  else if (polls > 16) sched_yield();
}

}  // namespace tutti::distributed::mpi
