#include "launch.h"

#include "../../core/parse_number.h"
#include "../backends/mpi/mpi.h"
#include "rendezvous/secret.h"

#include <cstdlib>
#include <optional>

namespace tutti::distributed {
namespace {

// The variables of one kind of launcher. Of the kinds by_mpi below, the first one that is set
// counts: a launcher may run inside the job of a later one, as mpirun does inside of srun.
struct Variables {
  const char *rank, *size, *local_rank, *local_size;
  bool by_mpi;
};
constexpr Variables open_mpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", true};
constexpr Variables mvapich = {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                               "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", true};
constexpr Variables pmi = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true};
// SLURM_NTASKS is set in a batch script, too, which is none of the tasks; SLURM_STEP_NUM_TASKS is
// not.
constexpr Variables slurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
                             true};
constexpr Variables torchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false};

std::string text_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

// Lists those of the variables that are set: "RANK=1 WORLD_SIZE=4".
std::string list_set(std::initializer_list<const char*> variables) {
  std::string found;
  for (const char* variable : variables)
    if (const std::string text = text_of(variable); !text.empty())
      found += fmt::format("{}{}={}", found.empty() ? "" : " ", variable, text);
  return found;
}

std::string everything_found() {
  return list_set({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK",
                   "MV2_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMI_ID",
                   "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                   "MASTER_ADDR", "MASTER_PORT"});
}

// Reads a number of at least `least`; nothing where the variable is not set or null.
std::optional<int> read_number(const char* variable, const char* meaning, int least) {
  const std::string text = variable ? text_of(variable) : "";
  if (text.empty()) return {};
  const auto value = parse_number(text, least);
  if (!value)
    fail<DistributedError>("from_environment: {}='{}' should be {}, at least {}", variable, text,
                           meaning, least);
  return value;
}

// Reads one launcher's variables; nothing where they are not set.
std::optional<Launch> read(const Variables& variables) {
  const auto size = read_number(variables.size, "the number of processes", 1);
  const auto rank = read_number(variables.rank, "the rank of this process", 0);
  // SLURM_PROCID alone means a batch script. A single process needs no rank.
  if (!size && (!rank || variables.rank == slurm.rank)) return {};
  if (size == 1 && !rank) return {};
  if (!size || !rank)
    fail<DistributedError>(
        "from_environment: {} is set and {} is not; found {}. Start the processes with 'mpirun -n "
        "{} PROGRAM', srun or torchrun, which set both, or unset {} to run alone",
        size ? variables.size : variables.rank, size ? variables.rank : variables.size,
        everything_found(), size ? *size : *rank + 1, size ? variables.size : variables.rank);
  if (*rank >= *size)
    fail<DistributedError>("from_environment: {}={} is no rank of {}={}", variables.rank, *rank,
                           variables.size, *size);
  return Launch{.rank = *rank,
                .size = *size,
                .local_rank = read_number(variables.local_rank, "a local rank", 0).value_or(-1),
                .local_size = read_number(variables.local_size, "a local size", 1).value_or(-1),
                .by_mpi = variables.by_mpi,
                .found = list_set({variables.rank, variables.size, variables.local_rank})};
}

// The variables of launchers that tell no number of processes, such as prterun: each process would
// train alone, and nobody would notice.
constexpr const char* without_size[] = {"PMIX_RANK", "PMI_ID", "PMI_FD", "PMI_PORT", "MPIRUN_RANK"};

void refuse_unknown_launcher() {
  for (const char* variable : without_size)
    if (const std::string text = text_of(variable); !text.empty())
      fail<DistributedError>(
          "from_environment: {}={} says that a launcher started this process, but no variable that "
          "tutti knows says how many there are; found {}. Start them with 'mpirun -n N PROGRAM', "
          "srun or torchrun, pass rank and world_size, or unset {} to run alone",
          variable, text, everything_found(), variable);
}

Launch read_environment() {
  std::optional<Launch> outer = read(open_mpi);
  const bool may_nest = !outer;  // srun starts one torchrun on each node
  for (const Variables& variables : {mvapich, pmi, slurm})
    if (!outer) outer = read(variables);
  const std::optional<Launch> inner = read(torchrun);
  if (!inner && !outer && !mpi::is_initialized()) refuse_unknown_launcher();
  if (!inner) return outer.value_or(Launch{});
  if (!outer || (inner->rank == outer->rank && inner->size == outer->size))
    return outer ? *outer : *inner;
  if (may_nest || !text_of("TORCHELASTIC_RUN_ID").empty()) return *inner;
  fail<DistributedError>(
      "from_environment: two launchers contradict each other: {} and {}; unset the variables of "
      "the one that is not meant, or pass rank and world_size",
      outer->found, inner->found);
}

// Returns "HOST:PORT" of rank 0, or nothing. Where torchrun's agent serves its own store at
// MASTER_PORT, ours takes the next port.
std::string master_address() {
  const std::string host = text_of("MASTER_ADDR");
  const auto port = read_number("MASTER_PORT", "a port", 1);
  if (host.empty() || !port) return {};
  return fmt::format("{}:{}", host,
                     *port + (text_of("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0));
}

// TORCHELASTIC_RESTART_COUNT is no part of it, because the agents of several hosts count restarts
// each for itself (https://github.com/pytorch/pytorch/issues/135712).
std::string run_id() {
  if (const std::string id = text_of("TORCHELASTIC_RUN_ID"); !id.empty()) return id;
  if (const std::string id = text_of("PMIX_NAMESPACE"); !id.empty()) return id;
  if (const std::string id = text_of("SLURM_JOB_ID"); !id.empty())
    return fmt::format("{}.{}", id, text_of("SLURM_STEP_ID"));
  return {};
}

}  // namespace

Launch find_launch(const WorldOptions& options) {
  const bool is_explicit = options.rank >= 0 || options.world_size > 0;
  if (is_explicit && (options.rank < 0 || options.rank >= options.world_size))
    fail<ValueError>(
        "from_environment: rank and world_size go together, with 0 <= rank < world_size; got rank "
        "{} and world_size {}",
        options.rank, options.world_size);
  Launch launch = is_explicit ? Launch{.rank = options.rank,
                                       .size = options.world_size,
                                       .found = fmt::format("rank={} world_size={}", options.rank,
                                                            options.world_size)}
                              : read_environment();
  if (is_explicit) {
    for (const Variables& variables : {open_mpi, mvapich, pmi, slurm})
      launch.by_mpi |= !text_of(variables.size).empty();
    for (const char* variable : without_size) launch.by_mpi |= !text_of(variable).empty();
  }
  if (options.local_rank >= 0) launch.local_rank = options.local_rank;
  launch.rendezvous = options.rendezvous.empty() ? master_address() : options.rendezvous;
  launch.run_id = options.run_id.empty() ? run_id() : options.run_id;
  return launch;
}

std::string find_secret(const WorldOptions& options) {
  // Neither children of this process nor a dump of its environment shall have the secret, so it is
  // kept here for the next call.
  static std::string taken;
  const std::string file = text_of("TUTTI_RENDEZVOUS_SECRET_FILE"),
                    text = text_of("TUTTI_RENDEZVOUS_SECRET");
  if (!text.empty()) taken = text;
  unsetenv("TUTTI_RENDEZVOUS_SECRET");
  if (!options.rendezvous_secret.empty()) {
    rendezvous::check_secret(options.rendezvous_secret, "WorldOptions::rendezvous_secret");
    return options.rendezvous_secret;
  }
  if (!text.empty() && !file.empty())
    fail<ValueError>(
        "from_environment: TUTTI_RENDEZVOUS_SECRET and TUTTI_RENDEZVOUS_SECRET_FILE are both set; "
        "unset one of them");
  if (!file.empty()) return rendezvous::read_secret_file(file);
  if (!taken.empty()) rendezvous::check_secret(taken, "TUTTI_RENDEZVOUS_SECRET");
  return taken;
}

}  // namespace tutti::distributed
