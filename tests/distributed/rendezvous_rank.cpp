// One rank of a rendezvous in a process of its own, which the tests of the rendezvous start, stop
// and kill. Usage: rendezvous_rank ADDRESS RANK SIZE RUN_ID TIMEOUT_MS [stay]. It prints the values
// of all ranks, or the error. With `stay` it then waits until the run fails, and prints why.
#include <tutti/distributed/launch/launch.h>
#include <tutti/distributed/launch/rendezvous/store.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

using namespace tutti::distributed;

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  try {
    const std::chrono::milliseconds timeout(std::atoi(argv[5]));
    const auto store = rendezvous::open(argv[1], {std::atoi(argv[2]), std::atoi(argv[3]), argv[4],
                                                  timeout, find_secret(WorldOptions{})});
    const auto list = [](const std::vector<std::string>& names) {
      std::string met = "met:";
      for (const std::string& name : names) met += " [" + name + "]";
      return std::vector(names.size(), met);
    };
    const std::string name = std::string("the name of ") + argv[2];
    std::printf("%s\n", store->gather("names", name, list).c_str());
    std::fflush(stdout);
    if (argc == 6) return 0;
    const auto deadline = deadline_after(timeout);
    while (std::chrono::steady_clock::now() < deadline) {
      if (const auto failure = store->failure()) {
        std::printf("failed: %s\n", failure->what.c_str());
        return 3;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return 0;
  } catch (const tutti::TimeoutError& error) {
    std::printf("timeout: %s\n", error.what());
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
  }
  return 1;
}
