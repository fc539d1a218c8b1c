// How from_environment() reads the launchers' variables: MPI brings processes together, and
// whatever shows several processes that MPI cannot find is an error, never a training alone.
#include "messages.h"

#include <tutti/distributed/launch/launch.h>

#include <gtest/gtest.h>

#include <cstdlib>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;

// Removes the variables of launchers, which the tests may have been started by.
class Launchers : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void set(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  static void clear() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "PMIX_RANK",
                             "PMIX_NAMESPACE",
                             "PMI_ID",
                             "PMI_FD",
                             "PMI_PORT",
                             "MPIRUN_RANK",
                             "MPT_MPI_RANK",
                             "PALS_RANKID",
                             "ALPS_APP_PE",
                             "FLUX_TASK_RANK",
                             "FLUX_JOB_SIZE",
                             "JSM_NAMESPACE_RANK",
                             "SLURM_PROCID",
                             "JSM_NAMESPACE_SIZE",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID"})
      unsetenv(name);
  }
  static std::string error() {
    return message_of<Error>([] { ProcessGroup::from_environment(); });
  }
  static std::pair<int, int> launch() {
    const GroupInfo found = find_launch();
    return {found.rank, found.size};
  }
};

TEST_F(Launchers, EachThatMpiMayFindIsUnderstood) {
  EXPECT_EQ(launch(), std::pair(0, 1));
  for (const auto& [rank, size] : {std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                   {"PMI_RANK", "PMI_SIZE"},
                                   {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                   {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
                                   {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
                                   {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"}}) {
    // Pods and containers set the variables of torchrun for one process.
    set({{rank, "5"}, {size, "8"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMIX_RANK", "5"}});
    EXPECT_EQ(launch(), std::pair(5, 8)) << rank;
    set({{rank, "0"}, {size, "1"}});
    EXPECT_EQ(launch(), std::pair(0, 1)) << rank;
    clear();
  }
}

TEST_F(Launchers, MpirunInsideOfSrunIsMpiruns) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  set({{"OMPI_COMM_WORLD_RANK", "6"}, {"OMPI_COMM_WORLD_SIZE", "16"}});
  EXPECT_EQ(launch(), std::pair(6, 16));
}

TEST_F(Launchers, ABatchScriptIsNoTask) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(launch(), std::pair(0, 1));
  set({{"SLURM_PROCID", "1"}});  // a second process is the task of a step
  expect_contains(error(), {"SLURM_PROCID is set and SLURM_STEP_NUM_TASKS is not"});
}

TEST_F(Launchers, ThoseOfTorchrunAreRefusedWithTheLineToStartWith) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"LOCAL_RANK", "1"}});
  expect_contains(error(), {"WORLD_SIZE=4 shows several processes", "no MPI launcher",
                            "found RANK=1 WORLD_SIZE=4 LOCAL_RANK=1", "'mpirun -n 4 PROGRAM'",
                            "'srun --mpi=pmix -n 4 PROGRAM'", "--ranks 4"});
  unsetenv("RANK");
  expect_contains(error(), {"WORLD_SIZE=4 shows several processes"});
  // srun has started one torchrun on each of two nodes, whose processes are no tasks of srun.
  set({{"RANK", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  expect_contains(error(), {"WORLD_SIZE=4", "the MPI launcher has started 2", "mpirun -n 4"});
  set({{"WORLD_SIZE", "2"}, {"RANK", "0"}});  // the same said twice
  EXPECT_EQ(launch(), std::pair(0, 2));
}

TEST_F(Launchers, OneProcessMayHaveWhateverPort) {
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "tcp://10.0.0.1:80"}});
  EXPECT_EQ(ProcessGroup::from_environment(60s).size(), 1);
  EXPECT_EQ(launch_variables(), "RANK=0 WORLD_SIZE=1");
}

TEST_F(Launchers, PartialSetsListWhatWasFound) {
  set({{"RANK", "4"}});
  expect_contains(error(), {"RANK is set and WORLD_SIZE is not", "found RANK=4"});
  set({{"WORLD_SIZE", "1"}});
  expect_contains(error(), {"RANK=4 is no rank of WORLD_SIZE=1"});
  clear();
  set({{"OMPI_COMM_WORLD_SIZE", "2"}});
  expect_contains(error(),
                  {"OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not", "mpirun -n 2"});
  set({{"OMPI_COMM_WORLD_RANK", "two"}});
  expect_contains(error(), {"OMPI_COMM_WORLD_RANK='two' should be the rank"});
}

// Each process would train alone.
TEST_F(Launchers, OneThatTellsNoSizeIsRefused) {
  for (const char* variable : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_ID", "PMI_FD", "MPT_MPI_RANK",
                               "PALS_RANKID", "ALPS_APP_PE", "LOCAL_RANK"}) {
    set({{variable, "1"}});
    expect_contains(error(), {std::string(variable) + "=1", "says how many", "MPI_Init()"});
    if (variable != std::string("LOCAL_RANK")) {
      set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
      expect_contains(error(), {std::string(variable) + "=1", "says how many"});
    }
    set({{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "4"}});
    EXPECT_EQ(launch(), std::pair(1, 4));
    clear();
  }
}

}  // namespace
}  // namespace tutti
