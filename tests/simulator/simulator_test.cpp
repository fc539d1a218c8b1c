// The MPI backend of the library over the simulator: whole jobs of 2 to 1,024 ranks in virtual
// time, and jobs in which something goes wrong.
#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/hash.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/backends/mpi/library.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include "job.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <regex>
#include <thread>

namespace tutti::simulator {
namespace {

using namespace std::chrono_literals;

constexpr auto timeout = 5s;
constexpr std::int64_t channels = 6, samples = 2;

std::uint64_t hash_of(const Tensor& tensor, std::uint64_t seed) {
  Hash64 hash;
  hash.add(seed);
  hash.add(std::string_view(static_cast<const char*>(tensor.raw()),
                            static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype())));
  return hash.value();
}

ProcessGroup join_world(int rank, int size) {
  set_num_threads(1);
  ProcessGroup group(
      distributed::mpi::make_world({.rank = rank, .expected_size = size, .timeout = timeout}));
  mark();
  return group;
}

// The program of a rank: it joins the world, takes a step of SyncBatchNorm, and reduces a bucket.
std::uint64_t train(int rank, int size) {
  const ProcessGroup group = join_world(rank, size);
  nn::SyncBatchNorm layer({.channels = channels, .dtype = float64, .group = group});
  const Tensor x =
      (arange(samples * channels * 4, {float64}).reshape({samples, channels, 2, 2}) * 0.5 +
       static_cast<double>(rank % 7))
          .detach()
          .requires_grad_();
  const Tensor y = layer.forward(x);
  y.backward(ones(y.shape(), {float64}));
  mark();
  const Tensor bucket = ones({40'000}, {float32});
  group.all_reduce(bucket, distributed::ReduceOp::sum).wait();
  if (bucket.select(0, 39'999).item<int>() != size) throw std::runtime_error("a wrong sum");
  mark();
  return hash_of(bucket, hash_of(layer.running_var, hash_of(layer.running_mean, 0)));
}

Job simulate_training(const Layout& layout, std::uint64_t seed) {
  const int size = layout.ranks();
  return simulate(layout, seed, 120 * second, [&](int rank) { return train(rank, size); });
}

void expect_success(const Job& job) {
  std::string lines;
  for (const Outcome& rank : job.ranks) lines += rank.lines;
  ASSERT_FALSE(job.was_ended) << lines;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    ASSERT_TRUE(job.ranks[r].has_exited) << r << job.ranks[r].error << job.waits;
    ASSERT_EQ(job.ranks[r].state, Outcome::State::succeeded) << job.ranks[r].error;
    ASSERT_EQ(job.ranks[r].result, job.ranks[0].result) << r;
    ASSERT_STREQ(job.ranks[r].lines, "") << r;
  }
}

TEST(Simulator, AJobSucceedsOnHostsOfAnySizes) {
  for (const std::vector<int>& hosts :
       {std::vector{2}, {8}, {1, 1}, {3, 1}, {3, 3, 2}, {8, 8, 8, 8}, {7, 8, 1, 8, 3, 5}})
    expect_success(simulate_training({.host_sizes = hosts}, 1));
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

// Prints a row of the table in docs/scaling.md. All of it grows as the ranks, and what one rank
// sends as their logarithm.
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
// as mpi.count_messages counted them with Open MPI (docs/scaling.md).
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
    distributed::mpi::initialize({.rank = rank, .expected_size = 4, .timeout = timeout});
    std::this_thread::sleep_for(late[rank]);
    try {
      if (rank == 1) distributed::mpi::make_world({.rank = rank, .timeout = 1s});
    } catch (const TimeoutError&) {}
    join_world(rank, 4).barrier();
    return 0;
  });
  expect_success(job);
}

// Draws a fault that happens while the job of `sound` runs.
Fault draw_fault(std::uint64_t seed, const Layout& layout, const Job& sound) {
  std::mt19937_64 random(seed);
  const auto below = [&](Time most) {
    return static_cast<Time>(random() % static_cast<std::uint64_t>(most));
  };
  const auto hosts = static_cast<Time>(layout.host_sizes.size());
  using enum Fault::Kind;
  constexpr Fault::Kind kinds[] = {die, stop, sleep, error, delay, cut, host};
  Fault fault{.kind = kinds[below(hosts > 1 ? 7 : 4)]};
  fault.rank = static_cast<int>(below(layout.ranks()));
  fault.other = static_cast<int>(below(layout.ranks()));
  fault.at_poll = below(3) == 0;
  const int calls = sound.ranks[static_cast<std::size_t>(fault.rank)].calls[fault.at_poll];
  fault.call = 1 + static_cast<int>(below(calls));
  fault.begin = below(sound.end);
  constexpr Time durations[] = {500 * millisecond, 2 * second, 20 * second, never};
  fault.duration = durations[below(4)];
  const bool must_end = fault.kind == Fault::Kind::sleep || fault.kind == Fault::Kind::delay;
  if (must_end && fault.duration == never) fault.duration = 2 * second;
  return fault;
}

// Returns the ranks that a text names, "rank 3" or "ranks 0, 2 and 5", without the one that throws.
std::set<int> named_ranks(const std::string& text) {
  static const std::regex list("(\\[?)ranks? (\\d+(?:, \\d+)*(?: and \\d+)?)"), number("\\d+");
  std::set<int> ranks;
  for (std::sregex_iterator each(text.begin(), text.end(), list), end; each != end; ++each) {
    const std::string numbers = (*each)[2];
    if ((*each)[1].length() > 0) continue;  // "[rank 1 of 4]"
    for (std::sregex_iterator n(numbers.begin(), numbers.end(), number); n != end; ++n)
      ranks.insert(std::stoi(n->str()));
  }
  return ranks;
}

// Returns the ranks that an error must name one of.
std::set<int> culprits(const Layout& layout) {
  const Fault& fault = layout.fault;
  const std::vector<int> hosts = layout.hosts();
  std::set<int> ranks = {fault.rank};
  const bool of_link = fault.kind == Fault::Kind::delay || fault.kind == Fault::Kind::cut;
  if (!of_link && fault.kind != Fault::Kind::host) return ranks;
  for (int r = 0; r < layout.ranks(); ++r) {
    const auto is_on_host_of = [&](int other) {
      return hosts[static_cast<std::size_t>(r)] == hosts[static_cast<std::size_t>(other)];
    };
    if (is_on_host_of(fault.rank) || (of_link && is_on_host_of(fault.other))) ranks.insert(r);
  }
  return ranks;
}

std::string to_string(const Fault& fault) {
  constexpr const char* kinds[] = {"nothing", "death", "stop",  "sleep",
                                   "error",   "delay", "a cut", "a host gone"};
  return fmt::format("{} of rank {} (and {}) at {} {}, or from {} us on, for {} ms",
                     kinds[static_cast<int>(fault.kind)], fault.rank, fault.other,
                     fault.at_poll ? "poll" : "call", fault.call, fault.begin / microsecond,
                     fault.duration == never ? -1 : fault.duration / millisecond);
}

// What must hold after a fault: each rank that lives has ended in time, with the right bits or with
// an error that names a rank at fault. A job may also be ended where ranks wait inside MPI: the
// rank at fault is then the one that prints no line.
void check_fault(const Job& job, const Layout& layout, const Job& sound) {
  const std::set<int> expected = culprits(layout);
  const auto names_one = [&](const char* text) {
    return std::ranges::any_of(named_ranks(text), [&](int r) { return expected.contains(r); });
  };
  bool is_line = false;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    const Outcome& rank = job.ranks[r];
    is_line = is_line || rank.lines[0] != 0;
    if (rank.was_stopped) continue;
    EXPECT_TRUE(rank.has_exited || job.was_ended) << "rank " << r << " hangs" << job.waits;
    if (rank.state == Outcome::State::succeeded) {
      EXPECT_EQ(rank.result, sound.ranks[0].result) << "rank " << r;
    } else if (rank.state == Outcome::State::failed) {
      EXPECT_TRUE(names_one(rank.error)) << "rank " << r << ": " << rank.error;
    }
  }
  EXPECT_TRUE(is_line || !job.was_ended) << "no line says why the job ended";
  EXPECT_LT(job.end, 60 * second);
  const bool goes_on = layout.fault.duration <= 2 * second;
  if (goes_on &&
      (layout.fault.kind == Fault::Kind::stop || layout.fault.kind == Fault::Kind::sleep))
    expect_success(job);
}

// Runs the seeds [0, count) on a layout each, or the one of TUTTI_SIMULATOR_SEED alone.
void run_seeds(const std::vector<Layout>& layouts, int count) {
  std::vector<Job> sound;
  for (const Layout& layout : layouts) sound.push_back(simulate_training(layout, 1));
  const char* const one = std::getenv("TUTTI_SIMULATOR_SEED");
  if (const char* text = std::getenv("TUTTI_SIMULATOR_SEEDS")) count = std::atoi(text);
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  for (int seed = one ? std::atoi(one) : 0; seed < count; ++seed) {
    const std::size_t at = static_cast<std::size_t>(seed) % layouts.size();
    Layout layout = layouts[at];
    layout.fault = draw_fault(static_cast<std::uint64_t>(seed), layout, sound[at]);
    const Job job = simulate_training(layout, static_cast<std::uint64_t>(seed));
    SCOPED_TRACE(fmt::format(
        "{} on hosts of {} ranks; repeat it with TUTTI_SIMULATOR_SEED={} simulator_tests "
        "--gtest_filter=Simulator.{}",
        to_string(layout.fault), fmt::join(layout.host_sizes, ", "), seed, name));
    check_fault(job, layout, sound[at]);
    if (one || testing::Test::HasFatalFailure()) return;
  }
}

// Errors of the last calls that poll, most of which are made at the exit, where no caller is left
// that could catch them.
TEST(Simulator, AnErrorOfMpiAtTheExitEndsTheJobWithALine) {
  Layout layout{.host_sizes = {4}};
  const Job sound = simulate_training(layout, 1);
  int ended = 0;
  for (const int rank : {0, 2})
    for (int last = 0; last < 10; ++last) {
      const Outcome& before = sound.ranks[static_cast<std::size_t>(rank)];
      layout.fault = {.kind = Fault::Kind::error,
                      .rank = rank,
                      .at_poll = true,
                      .call = before.calls[1] - last};
      const Job job = simulate_training(layout, 1);
      if (!job.was_ended) expect_success(job);
      const std::string lines = job.ranks[static_cast<std::size_t>(rank)].lines;
      EXPECT_EQ(job.was_ended, lines.starts_with(fmt::format(
                                   "tutti: rank {} is exiting and ends the job: MPI_", rank)))
          << lines << job.waits;
      ended += job.was_ended;
    }
  EXPECT_GE(ended, 4);
}

TEST(Simulator, FaultsOnOneHost) { run_seeds({{{2}}, {{4}}, {{8}}}, 300); }

TEST(Simulator, FaultsOnSeveralHosts) {
  run_seeds({{{1, 1}}, {{3, 1}}, {{4, 4}}, {{3, 3, 2}}, {{1, 1, 1, 1, 1}}, {{8, 8, 8, 8}}}, 300);
}

}  // namespace
}  // namespace tutti::simulator
