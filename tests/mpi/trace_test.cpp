// Traces of several processes: their files become one, in which the communication threads have
// tracks of their own.
#include "../distributed/trace_case.h"

#include <unistd.h>
#include <filesystem>
#include <set>

namespace tutti {

TEST(Mpi, TraceShowsTheOverlapOnTheCommunicationThread) {
  const ProcessGroup& group = distributed::world();
  const Tensor id = full({}, getpid(), {.dtype = int64});
  group.broadcast(id).wait();
  const std::string path = (std::filesystem::temp_directory_path() /
                            fmt::format("tutti_mpi_{}", id.item<std::int64_t>()))
                               .string();
  std::vector<std::string> parts;
  for (int r = 0; r < group.size(); ++r) parts.push_back(path + ".rank" + std::to_string(r));
  group.barrier();
  {
    trace::Profile profile(parts[static_cast<std::size_t>(group.rank())], group.rank());
    test::run_traced_step(group);
  }
  group.barrier();
  if (group.rank() == 0) trace::merge(parts, path);
  group.barrier();
  const auto events = test::read_trace(path);
  test::expect_traced_step(events, group.size());
  std::set<int> transfers;  // ranks
  std::map<std::pair<int, int>, std::string> threads;
  for (const auto& e : events) {
    if (e.at("name") == "thread_name")
      threads[{e.at("pid"), e.at("tid")}] = e.at("args").at("name");
    if (e.at("name") != "transfer: bucket 0: c") continue;
    transfers.insert(e.at("pid").get<int>());
    EXPECT_EQ((threads[{e.at("pid"), e.at("tid")}]), "communication of world");
  }
  EXPECT_EQ(transfers.size(), static_cast<std::size_t>(group.size()));
  group.barrier();
  if (group.rank() == 0) std::filesystem::remove(path);
}

}  // namespace tutti
