// The MPI backend of the library over the simulator: whole jobs of 2 to 1,024 ranks in virtual
// time, and what they cost. faults_test.cpp has jobs in which something goes wrong.
#include "operations.h"
#include "training.h"

#include <tutti/core/create.h>
#include <tutti/distributed/backends/mpi/library.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/distributed/launch/launch.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <thread>

namespace tutti::simulator {
namespace {

using namespace std::chrono_literals;

TEST(Simulator, AJobSucceedsOnHostsOfAnySizes) {
  for (const std::vector<int>& hosts :
       {std::vector{2}, {8}, {1, 1}, {3, 1}, {3, 3, 2}, {8, 8, 8, 8}, {7, 8, 1, 8, 3, 5}})
    for (const bool in_turns : {false, true}) {
      const Layout layout{.host_sizes = hosts, .in_turns = in_turns};
      expect_success(simulate_training(layout, 1));
      if (in_turns && hosts.size() == 1) continue;
      for (int program = 0; program < operation_programs; ++program)
        expect_success(simulate_operations(layout, 1, program));
    }
  // Data of 60,000 bytes are inline only where no host has more than 8 ranks.
  expect_success(simulate_large_operations({.host_sizes = {10, 1}}, 1, 15'000));
}

// What the ranks sent in a phase of the program, the most that one of them sent, and how long it
// took.
struct Cost {
  std::int64_t messages = 0, bytes = 0, most = 0;
  Time time = 0;
};

Cost cost_of(const Job& job, std::size_t phase) {
  Cost cost;
  Time last = 0, before = 0;
  for (const Outcome& rank : job.ranks) {
    const Mark now = rank.mark[phase], then = phase == 0 ? Mark() : rank.mark[phase - 1];
    const std::int64_t messages = now.traffic.messages - then.traffic.messages;
    last = std::max(last, now.at);
    before = std::max(before, then.at);
    cost.messages += messages;
    cost.bytes += now.traffic.bytes - then.traffic.bytes;
    cost.most = std::max(cost.most, messages);
  }
  cost.time = last - before;
  return cost;
}

// So many ranks, 8 on each host.
Layout hosts_of_8(int ranks) {
  return {.host_sizes = std::vector(static_cast<std::size_t>((ranks + 7) / 8), std::min(ranks, 8))};
}

// Prints a row of the table in benchmarks/results/scaling.md. All of it grows as the ranks, and
// what one rank sends as their logarithm.
TEST(Simulator, Scale) {
  struct Bound {
    const char* phase;
    int messages, bytes;  // for each rank
    int most;             // messages of one rank, for each doubling of the ranks
  };
  constexpr Bound bounds[] = {{"start", 22, 130, 9},
                              {"layer", 17, 6500, 8},
                              {"bucket", 25, 322'000, 8},
                              {"exit", 2, 40, 1}};
  for (int ranks = 2; ranks <= 1024; ranks *= 2) {
    const Job job = simulate_training(hosts_of_8(ranks), 1);
    expect_success(job);
    const int doublings = std::countr_zero(static_cast<unsigned>(ranks));
    std::string row = fmt::format("| {} |", ranks);
    for (std::size_t p = 0; p < std::size(bounds); ++p) {
      const Cost cost = cost_of(job, p);
      row += fmt::format(" {}, {}, {:.0f}, {:.2f} |", cost.messages, cost.most,
                         1e-3 * static_cast<double>(cost.bytes),
                         static_cast<double>(cost.time) / millisecond);
      SCOPED_TRACE(fmt::format("{} of {} ranks", bounds[p].phase, ranks));
      EXPECT_LE(cost.messages, bounds[p].messages * ranks);
      EXPECT_LE(cost.bytes, std::int64_t{bounds[p].bytes} * ranks);
      EXPECT_LE(cost.most, bounds[p].most * doublings);
    }
    std::size_t most_peers = 0;
    for (const Outcome& rank : job.ranks) most_peers = std::max(most_peers, rank.peers);
    std::printf("%s %zu |\n", row.c_str(), most_peers);
  }
}

// A rank dies in the layer: those that wait for it tell all others, and rank 0 asks who has come to
// the exit.
TEST(Simulator, AFailureSendsMessagesInProportionToTheRanks) {
  for (const int ranks : {16, 64, 256}) {
    Layout layout = hosts_of_8(ranks);
    const Job sound = simulate_training(layout, 1);
    std::int64_t messages = 0;
    layout.fault = {
        .kind = Fault::Kind::die, .rank = ranks - 1, .call = sound.ranks.back().calls[0] / 2};
    const Job job = simulate_training(layout, 1);
    for (const Outcome& rank : job.ranks) messages += rank.traffic.messages;
    EXPECT_LE(messages, 70 * ranks);
  }
}

// The most messages that a rank sends to other hosts in an all-reduce of 8 KiB, 64 KiB and 8 MiB,
// as mpi.count_messages counted them with Open MPI (benchmarks/results/scaling.md).
TEST(Simulator, SendsAsManyMessagesAsOpenMpi) {
  struct Counted {
    int hosts, on_host;
    std::array<std::int64_t, 3> most;
  };
  for (const auto& [hosts, on_host, counted] :
       {Counted{2, 1, {2, 2, 3}}, Counted{4, 1, {4, 6, 10}}, Counted{2, 2, {2, 2, 2}},
        Counted{8, 1, {6, 9, 15}}, Counted{4, 2, {4, 6, 6}}, Counted{2, 4, {2, 2, 2}}})
    for (std::size_t i = 0; i < counted.size(); ++i) {
      const Layout layout{.host_sizes = std::vector(static_cast<std::size_t>(hosts), on_host)};
      const Job job = simulate(layout, 1, 120 * second, [&](int rank) -> std::uint64_t {
        const ProcessGroup group = join_world(rank, layout.ranks());
        constexpr std::int64_t elements[] = {1 << 10, 1 << 13, 1 << 20};
        group.all_reduce(ones({elements[i]}, {float64}), distributed::ReduceOp::mean).wait();
        mark();
        return 0;
      });
      expect_success(job);
      std::int64_t most = 0;
      for (const Outcome& rank : job.ranks)
        most =
            std::max(most, rank.mark[1].traffic.between_hosts - rank.mark[0].traffic.between_hosts);
      EXPECT_EQ(most, counted[i]) << hosts << " hosts of " << on_host << ", size " << i;
    }
}

// Rank 1 gives up waiting and comes again before rank 0 comes; rank 3 is later than both.
TEST(Simulator, ARankThatHasGivenUpDoesNotShortenTheWaitForOthers) {
  const Layout layout{.host_sizes = {4}};
  const Job job = simulate(layout, 1, 120 * second, [](int rank) -> std::uint64_t {
    constexpr std::chrono::milliseconds late[] = {2500ms, 0ms, 0ms, 5s};
    distributed::mpi::initialize({.rank = rank, .size = 4, .timeout = timeout});
    std::this_thread::sleep_for(late[rank]);
    try {
      if (rank == 1) distributed::mpi::make_world({.rank = rank, .timeout = 1s});
    } catch (const TimeoutError&) {}
    join_world(rank, 4).barrier();
    return 0;
  });
  expect_success(job);
}

}  // namespace
}  // namespace tutti::simulator
