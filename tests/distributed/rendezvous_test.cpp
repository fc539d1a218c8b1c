// How ranks find each other: processes over TCP; and how from_environment() reads the launchers'
// variables. rendezvous_security_test.cpp has strangers, other runs and limits.
#include "messages.h"
#include "rendezvous_case.h"

#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/distributed/launch/rendezvous/store.h>

#include <gtest/gtest.h>

#include <poll.h>
#include <csignal>
#include <fstream>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::connect_to_rank_0;
using test::expect_contains;
using test::free_port;
using test::Listener;
using test::Process;
using test::Rank;
using ::testing::TestWithParam;

class Rendezvous : public TestWithParam<const char*> {
 protected:
  std::string address() { return GetParam() + (":" + free_port()); }
};

TEST_P(Rendezvous, AllArrive) {
  const std::string at = address();
  std::vector<Process> ranks;
  for (const int rank : {2, 1, 0})
    ranks.push_back(Rank{at, rank, 3}.start());  // rank 0 is the last to come
  for (const Process& rank : ranks)
    EXPECT_EQ(rank.line(), "met: [the name of 0] [the name of 1] [the name of 2]");
  for (Process& rank : ranks) {
    EXPECT_EQ(rank.line(), "");
    EXPECT_EQ(rank.exit_code(), 0);
  }
}

TEST_P(Rendezvous, TheAbsentAreNamedAtTheDeadline) {
  const std::string at = address();
  // The deadline leaves time for a process to start on a busy machine.
  const Process two = Rank{at, 2, 4, "run 1", 5500ms}.start(),
                zero = Rank{at, 0, 4, "run 1", 5500ms}.start();
  expect_contains(zero.line(), {"timeout: rendezvous at",
                                "ranks 1 and 3 of 4 did not come within 5500 ms", "'run 1'"});
  expect_contains(two.line(), {"timeout: ", "ranks 1 and 3 of 4 did not come"});
}

TEST_P(Rendezvous, TwoOfTheSameRankAreNotTakenForOne) {
  const std::string at = address();
  const Process zero = Rank{at, 0, 3}.start(), one = Rank{at, 1, 3}.start(),
                another = Rank{at, 1, 3}.start();
  // Either of the two may be the second one; the first one waits for rank 2.
  pollfd ends[] = {{one.output(), POLLIN, 0}, {another.output(), POLLIN, 0}};
  ASSERT_EQ(poll(ends, 2, 15000), 1);
  expect_contains((ends[0].revents ? one : another).line(),
                  {"error: ", "another process has already come as rank 1"});
}

INSTANTIATE_TEST_SUITE_P(Ways, Rendezvous, ::testing::Values("127.0.0.1", "localhost"),
                         [](const auto& each) {
                           return each.param == std::string("localhost") ? "Name" : "Address";
                         });

TEST(TcpRendezvous, AnotherWorldSizeIsTurnedAway) {
  const std::string at = "127.0.0.1:" + free_port();
  const Process zero = Rank{at, 0, 2}.start(), one = Rank{at, 1, 4}.start();
  expect_contains(one.line(), {"error: ", "rank 0 was started for 2 ranks, this one for 4"});
}

TEST(TcpRendezvous, WhoeverElseAnswersIsNotTakenForRankZero) {
  const Listener mute;
  const std::string at = "127.0.0.1:" + std::to_string(mute.port);
  const std::string secret = "what both of them know";
  const Process zero = Rank{at, 0, 2, "run 1", 20s, false, secret}.start();
  expect_contains(zero.line(),
                  {"error: ", "port " + std::to_string(mute.port) + " is taken", "MASTER_PORT"});
  const Process one = Rank{at, 1, 2, "run 1", 500ms, false, secret}.start();
  const int guest = accept(mute.fd, nullptr, nullptr);
  EXPECT_EQ(send(guest, "SSH-2.0-something\r\n", 19, MSG_NOSIGNAL), 19);
  expect_contains(one.line(), {"timeout: rendezvous: rank 1 could not reach rank 0 at " + at,
                               "within 500 ms", "no rank 0 of tutti"});
  close(guest);
}

TEST(TcpRendezvous, WhoeverListensAndDoesNotAnswerIsSaidToHang) {
  const Listener mute;
  const std::string at = "127.0.0.1:" + std::to_string(mute.port);
  expect_contains(Rank{at, 1, 2, "run 1", 300ms, false, "what both of them know"}.start().line(),
                  {"timeout: rendezvous: rank 1 could not reach rank 0 at " + at,
                   "what listens there does not answer; its process hangs or is busy"});
}

TEST(TcpRendezvous, NobodyThereIsSaidAtTheDeadline) {
  const std::string at = "127.0.0.1:" + free_port();
  const std::string late = "rank 1 could not reach rank 0 at " + at + " within 300 ms";
  expect_contains(Rank{at, 1, 2, "run 1", 300ms, false, "what both of them know"}.start().line(),
                  {"timeout: ", late, "refused"});
  expect_contains(Rank{at, 1, 2, "run 1", 300ms}.start().line(),
                  {"timeout: ", late, "in which rank 0 leaves the secret of this run"});
  expect_contains(Rank{"no-such-host.invalid:29500", 1, 2, "run 1", 300ms}.start().line(),
                  {"timeout: ", "no-such-host"});
  for (const char* none : {"29500", "file:/shared/x"})
    expect_contains(Rank{none, 1, 2}.start().line(),
                    {"error: ", fmt::format("an address HOST:PORT, got '{}'", none)});
}

TEST(TcpRendezvous, AKilledRankFailsTheRunByName) {
  const std::string at = "127.0.0.1:" + free_port();
  std::vector<Process> ranks;
  for (const int rank : {0, 1, 2}) ranks.push_back(Rank{at, rank, 3, "run 1", 20s, true}.start());
  for (const Process& rank : ranks) expect_contains(rank.line(), {"met: "});
  ranks[2].signal(SIGKILL);
  for (const int rank : {0, 1})
    expect_contains(ranks[static_cast<std::size_t>(rank)].line(),
                    {"failed: the process of rank 2 (on ", ") has ended"});
}

TEST(TcpRendezvous, WithoutRankZeroNothingHangs) {
  const std::string at = "127.0.0.1:" + free_port();
  std::vector<Process> ranks;
  for (const int rank : {0, 1}) ranks.push_back(Rank{at, rank, 2, "run 1", 20s, true}.start());
  for (const Process& rank : ranks) expect_contains(rank.line(), {"met: "});
  ranks[0].signal(SIGKILL);
  expect_contains(ranks[1].line(), {"error: rendezvous at " + at, "rank 0 does not answer"});
}

TEST(Store, TheFirstFailureStands) {
  const auto table = std::make_shared<rendezvous::SharedTable>();
  const auto zero = rendezvous::in_memory(table, {0, 2}),
             one = rendezvous::in_memory(table, {1, 2});
  EXPECT_FALSE(zero->failure());
  EXPECT_EQ(zero->fail({.at = "all_reduce #8", .what = "two\nlines", .timeout = true}).what,
            "two\nlines");
  const Failure second = one->fail({.what = "another"});
  EXPECT_EQ(second.at, "all_reduce #8");
  EXPECT_EQ(second.what, "two\nlines");
  EXPECT_TRUE(second.timeout);
  EXPECT_THROW(one->gather("names", "", {}), TimeoutError);
}

TEST(Store, ARankZeroThatDoesNotAnswerIsNamed) {
  const auto one =
      rendezvous::in_memory(std::make_shared<rendezvous::SharedTable>(), {1, 2, {}, 50ms});
  expect_contains(test::message_of<TimeoutError>([&] { one->gather("names", "", {}); }),
                  {"rank 0 of 2 did not answer within 50 ms"});
}

TEST(Store, EveryRankGetsItsOwnAnswerOfRankZero) {
  run_ranks(3, [](const ProcessGroup& group) {
    static const auto table = std::make_shared<rendezvous::SharedTable>();
    const auto store = rendezvous::in_memory(table, {group.rank(), 3});
    const auto shifted = [](const std::vector<std::string>& names) {
      return std::vector{names[1], names[2], names[0]};
    };
    EXPECT_EQ(store->gather("names", std::to_string(group.rank()), shifted),
              std::to_string((group.rank() + 1) % 3));
    store->count("here");
    group.barrier();
    EXPECT_EQ(store->get("here"), "3");
    EXPECT_EQ(store->get("her"), std::nullopt);
  });
}

TEST(Store, TravelsOverAGroupThatCanBroadcast) {
  run_ranks(3, [](const ProcessGroup& group) {
    const auto store = rendezvous::over(group, 20s);
    const auto itself = [](const std::vector<std::string>& names) { return names; };
    const std::string name = store->gather("names", fmt::format("{}", group.rank() * 7), itself);
    EXPECT_EQ(name, fmt::format("{}", group.rank() * 7));
    EXPECT_EQ(store->list("first"), (rendezvous::Values{{"first", store->put("first", name)}}));
    store->gather("done", "", itself);
  });
}

// ---- the launchers' variables

class Launchers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "PMIX_RANK",
                             "PMI_ID",
                             "PMI_FD",
                             "MPI_LOCALRANKID",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "TUTTI_RENDEZVOUS_SECRET",
                             "TUTTI_RENDEZVOUS_SECRET_FILE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "PMIX_NAMESPACE"})
      names_.push_back(name), unsetenv(name);
  }
  void TearDown() override {
    for (const char* name : names_) unsetenv(name);
  }
  static void set(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  static std::string error(const WorldOptions& options = {}) {
    try {
      ProcessGroup::from_environment(options);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }
  std::vector<const char*> names_;
};

TEST_F(Launchers, EachIsUnderstood) {
  EXPECT_EQ(find_launch({}).size, 1);
  set({{"SLURM_PROCID", "5"},
       {"SLURM_STEP_NUM_TASKS", "8"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_JOB_ID", "77"},
       {"SLURM_STEP_ID", "2"}});
  Launch launch = find_launch({});
  EXPECT_EQ(std::tuple(launch.rank, launch.size, launch.local_rank, launch.by_mpi),
            std::tuple(5, 8, 1, true));
  EXPECT_EQ(launch.run_id, "77.2");
  EXPECT_EQ(launch.rendezvous, "");

  // srun has started one torchrun on each node; torchrun's processes are the ranks.
  set({{"RANK", "11"},
       {"WORLD_SIZE", "64"},
       {"LOCAL_RANK", "3"},
       {"MASTER_ADDR", "node1"},
       {"MASTER_PORT", "29400"},
       {"LOCAL_WORLD_SIZE", "8"},
       {"TORCHELASTIC_RUN_ID", "job"},
       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  launch = find_launch({});
  EXPECT_EQ(std::tuple(launch.rank, launch.size, launch.local_rank, launch.by_mpi),
            std::tuple(11, 64, 3, false));
  EXPECT_EQ(launch.local_size, 8);
  EXPECT_EQ(launch.rendezvous, "node1:29400");
  EXPECT_EQ(launch.run_id, "job");
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  EXPECT_EQ(find_launch({}).rendezvous, "node1:29401");

  // Explicit arguments override the variables.
  launch = find_launch(
      {.rank = 1, .world_size = 2, .local_rank = 0, .rendezvous = "node7:1234", .run_id = "mine"});
  EXPECT_EQ(std::tuple(launch.rank, launch.size, launch.local_rank), std::tuple(1, 2, 0));
  EXPECT_EQ(launch.rendezvous, "node7:1234");
  EXPECT_EQ(launch.run_id, "mine");
}

TEST_F(Launchers, MpirunInsideOfSrunIsMpiruns) {
  set({{"SLURM_PROCID", "0"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"OMPI_COMM_WORLD_RANK", "6"},
       {"OMPI_COMM_WORLD_SIZE", "16"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "6"}});
  const Launch launch = find_launch({});
  EXPECT_EQ(std::tuple(launch.rank, launch.size, launch.by_mpi), std::tuple(6, 16, true));
}

TEST_F(Launchers, ABatchScriptIsNoTask) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(find_launch({}).size, 1);
  unsetenv("SLURM_NTASKS");
}

TEST_F(Launchers, PartialSetsListWhatWasFound) {
  set({{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}});
  expect_contains(error(), {"WORLD_SIZE is set and RANK is not",
                            "found WORLD_SIZE=4 MASTER_ADDR=node1", "mpirun -n 4"});
  set({{"RANK", "4"}});
  expect_contains(error(), {"RANK=4 is no rank of WORLD_SIZE=4"});
  unsetenv("WORLD_SIZE");
  expect_contains(error(), {"RANK is set and WORLD_SIZE is not", "found RANK=4"});
  unsetenv("RANK");
  set({{"OMPI_COMM_WORLD_SIZE", "2"}});
  expect_contains(error(), {"OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not"});
}

// Each process would train alone.
TEST_F(Launchers, OneThatTellsNoSizeIsRefused) {
  for (const char* variable : {"PMIX_RANK", "PMI_ID", "PMI_FD"}) {
    set({{variable, "1"}});
    expect_contains(error(),
                    {std::string(variable) + "=1", "says how many", "rank and world_size"});
    EXPECT_TRUE(find_launch({.rank = 1, .world_size = 2}).by_mpi);
    set({{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "4"}});
    const Launch launch = find_launch({});
    EXPECT_EQ(std::tuple(launch.rank, launch.size, launch.by_mpi), std::tuple(1, 4, true));
    unsetenv("MV2_COMM_WORLD_RANK"), unsetenv("MV2_COMM_WORLD_SIZE"), unsetenv(variable);
  }
}

TEST_F(Launchers, ContradictionsListBothSides) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"RANK", "1"},
       {"WORLD_SIZE", "4"}});
  expect_contains(error(),
                  {"contradict each other", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
                   "RANK=1 WORLD_SIZE=4"});
  set({{"WORLD_SIZE", "2"}});  // the same said twice is no contradiction
  EXPECT_TRUE(find_launch({}).by_mpi);
  expect_contains(error({.rank = 2, .world_size = 2}),
                  {"0 <= rank < world_size; got rank 2 and world_size 2"});
  expect_contains(error({.rank = 0}), {"rank and world_size go together"});
}

TEST_F(Launchers, BackendsThatCannotStartThisWaySayHow) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  expect_contains(error({.backend = "mpi"}),
                  {"MPI cannot find processes that no MPI launcher started", "RANK=1 WORLD_SIZE=4",
                   "mpirun -n 4 PROGRAM"});
  expect_contains(error({.backend = "gloo"}), {"unknown backend 'gloo': expected mpi or nccl"});
}

TEST_F(Launchers, OneProcessAloneGetsNothingButWhatItAsksFor) {
  expect_contains(error({.backend = "ncll"}), {"unknown backend 'ncll': expected mpi or nccl"});
  EXPECT_EQ(ProcessGroup::from_environment(WorldOptions{}).backend(), "single");
  EXPECT_EQ(ProcessGroup::from_environment({.backend = "mpi"}).backend(), "single");
  if (const std::string why = nccl::why_unavailable(); !why.empty())
    expect_contains(error({.backend = "nccl"}), {"the nccl backend cannot be used here", why});
}

}  // namespace
}  // namespace tutti
