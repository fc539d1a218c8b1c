#include "launch.h"

#include "../../core/parse_number.h"
#include "../backends/mpi/mpi.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

namespace tutti::distributed {
namespace {

// The variables by which kinds of launchers tell each process its rank and the number of all. The
// first one that is set counts: a launcher may run inside the job of a later one, as mpirun
// does inside of srun. SLURM_NTASKS is set in a batch script, too, which is none of the tasks;
// SLURM_STEP_NUM_TASKS is not.
constexpr const char* mpi_launchers[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                            {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                            {"PMI_RANK", "PMI_SIZE"},
                                            {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
                                            {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
                                            {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
constexpr const char* torchrun[2] = {"RANK", "WORLD_SIZE"};
// Those of launchers that do not tell the number of processes, such as prterun, PALS, MPT and ALPS.
// Each process would train alone, and nobody would notice.
constexpr const char* without_size[] = {
    "PMIX_RANK",   "PMIX_NAMESPACE", "PMI_ID",      "PMI_FD",      "PMI_PORT",
    "MPIRUN_RANK", "MPT_MPI_RANK",   "PALS_RANKID", "ALPS_APP_PE", "HOROVOD_RANK"};

std::string text_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

// Reads a number of at least `least`; nothing where the variable is not set.
std::optional<int> read_number(const char* variable, const char* meaning, int least) {
  const std::string text = text_of(variable);
  if (text.empty()) return {};
  const auto value = parse_number(text, least);
  if (!value)
    fail<DistributedError>("from_environment: {}='{}' should be {}, at least {}", variable, text,
                           meaning, least);
  return value;
}

// Says how to start `processes` processes, of which there are several or an unknown number.
std::string how_to_start(int processes) {
  const std::string n = processes > 1 ? std::to_string(processes) : "N";
  return fmt::format(
      "start them with 'mpirun -n {} PROGRAM' or 'srun --mpi=pmix -n {} PROGRAM', on GPUs too; on "
      "one host, run_ranks() (train_resnet --ranks {}) needs no launcher",
      n, n, n);
}

// Reads one launcher's variables; nothing where they are not set.
std::optional<GroupInfo> read(const char* const (&variables)[2]) {
  const auto [rank_variable, size_variable] = variables;
  const auto size = read_number(size_variable, "the number of processes", 1);
  const auto rank = read_number(rank_variable, "the rank of this process", 0);
  // SLURM_PROCID=0 alone means a batch script. A single process needs no rank.
  const bool is_batch_script = rank == 0 && rank_variable == std::string_view("SLURM_PROCID");
  if (!size && (!rank || is_batch_script)) return {};
  if (size == 1 && rank.value_or(0) == 0) return GroupInfo{};
  if (!size || !rank)
    fail<DistributedError>(
        "from_environment: {} is set and {} is not; found {}. Unset {} to run "
        "alone, or {}",
        size ? size_variable : rank_variable, size ? rank_variable : size_variable,
        launch_variables(), size ? size_variable : rank_variable,
        how_to_start(size.value_or(rank.value_or(0) + 1)));
  if (*rank >= *size)
    fail<DistributedError>("from_environment: {}={} is no rank of {}={}", rank_variable, *rank,
                           size_variable, *size);
  return GroupInfo{.rank = *rank, .size = *size};
}

}  // namespace

std::string launch_variables() {
  std::string found;
  const auto add = [&](const char* variable) {
    if (const std::string text = text_of(variable); !text.empty())
      found += fmt::format("{}{}={}", found.empty() ? "" : " ", variable, text);
  };
  for (const auto& [rank, size] : mpi_launchers) add(rank), add(size);
  for (const char* variable : without_size) add(variable);
  for (const char* variable : {"SLURM_NTASKS", "RANK", "WORLD_SIZE", "LOCAL_RANK"}) add(variable);
  return found;
}

GroupInfo find_launch() {
  std::optional<GroupInfo> launch;
  for (const auto& variables : mpi_launchers)
    if (!launch) launch = read(variables);
  if (mpi::is_initialized()) return launch.value_or(GroupInfo{});
  // Pods and containers set RANK and WORLD_SIZE for one process, too.
  const int size = read_number(torchrun[1], "the number of processes", 1).value_or(1);
  if (size > 1 && size != (launch ? launch->size : 1))
    fail<DistributedError>(
        "from_environment: {}={} shows several processes, but {}; found {}. The processes of tutti "
        "find each other by MPI: {}. Unset {} where it is not meant",
        torchrun[1], size,
        launch ? fmt::format("the MPI launcher has started {}", launch->size)
               : "no MPI launcher has started them",
        launch_variables(), how_to_start(size), torchrun[1]);
  if (launch) return *launch;
  const std::optional<GroupInfo> alone = read(torchrun);
  std::vector<const char*> unknown(std::begin(without_size), std::end(without_size));
  if (!alone) unknown.push_back("LOCAL_RANK");
  std::erase_if(unknown, [](const char* variable) { return text_of(variable).empty(); });
  if (!unknown.empty())
    fail<DistributedError>(
        "from_environment: {}={} says that a launcher started this process, but no variable that "
        "tutti knows says how many there are; found {}. If there are several, {}, or call "
        "MPI_Init() before from_environment(); unset {} to run alone",
        unknown[0], text_of(unknown[0]), launch_variables(), how_to_start(0), unknown[0]);
  return alone.value_or(GroupInfo{});
}

}  // namespace tutti::distributed
