#include "launch.h"

#include <charconv>
#include <cstdlib>
#include <optional>

namespace tutti::distributed {
namespace {

// The variables of one kind of launcher. The first three that are complete win in this order: a
// launcher may run inside the job of a later one, as mpirun does inside of srun's.
struct Family {
  const char *rank, *size, *local_rank;
  bool by_mpi;
};
constexpr Family open_mpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", true};
constexpr Family pmi = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", true};
// Not SLURM_NTASKS: a batch script has it too, without being one of the tasks.
constexpr Family slurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true};
constexpr Family torchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", false};

std::string text_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

std::string list(std::initializer_list<const char*> variables) {
  std::string found;
  for (const char* variable : variables)
    if (const std::string text = text_of(variable); !text.empty())
      found += fmt::format("{}{}={}", found.empty() ? "" : " ", variable, text);
  return found;
}

std::string everything_found() {
  return list({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
               "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "RANK", "WORLD_SIZE", "LOCAL_RANK",
               "MASTER_ADDR", "MASTER_PORT"});
}

std::optional<int> number(const char* variable, const char* meaning, int least) {
  const std::string text = text_of(variable);
  if (text.empty()) return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least)
    fail<DistributedError>("from_environment: {}='{}' should be {}, at least {}", variable, text,
                           meaning, least);
  return value;
}

std::optional<Launch> read(const Family& family) {
  const auto size = number(family.size, "the number of processes", 1);
  const auto rank = number(family.rank, "the rank of this process", 0);
  // SLURM_PROCID alone is a batch script; one process needs no rank.
  if (!size && (!rank || family.rank == slurm.rank)) return {};
  if (size == 1 && !rank) return {};
  if (!size || !rank)
    fail<DistributedError>(
        "from_environment: {} is set and {} is not; found {}. Start the processes with 'mpirun -n "
        "{} PROGRAM', srun or torchrun, which set both, or unset {} to run alone",
        size ? family.size : family.rank, size ? family.rank : family.size, everything_found(),
        size ? *size : *rank + 1, size ? family.size : family.rank);
  if (*rank >= *size)
    fail<DistributedError>("from_environment: {}={} is no rank of {}={}", family.rank, *rank,
                           family.size, *size);
  return Launch{.rank = *rank,
                .size = *size,
                .local_rank = number(family.local_rank, "a local rank", 0).value_or(-1),
                .by_mpi = family.by_mpi,
                .found = list({family.rank, family.size, family.local_rank})};
}

Launch read_environment() {
  std::optional<Launch> outer = read(open_mpi);
  const bool may_nest = !outer;  // srun starts one torchrun on each node
  if (!outer) outer = read(pmi);
  if (!outer) outer = read(slurm);
  const std::optional<Launch> inner = read(torchrun);
  if (!inner) return outer.value_or(Launch{});
  if (!outer || (inner->rank == outer->rank && inner->size == outer->size))
    return outer ? *outer : *inner;
  if (may_nest || !text_of("TORCHELASTIC_RUN_ID").empty()) return *inner;
  fail<DistributedError>(
      "from_environment: two launchers contradict each other: {} and {}; unset the variables of "
      "the "
      "one that is not meant, or pass rank and world_size",
      outer->found, inner->found);
}

// Where torchrun's agent serves a store of its own at MASTER_PORT, ours takes the port after it.
std::string master_address() {
  const std::string host = text_of("MASTER_ADDR");
  const auto port = number("MASTER_PORT", "a port", 1);
  if (host.empty() || !port) return {};
  return fmt::format("{}:{}", host,
                     *port + (text_of("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0));
}

std::string run_id() {
  if (const std::string id = text_of("TORCHELASTIC_RUN_ID"); !id.empty())
    return fmt::format("{}.{}", id, text_of("TORCHELASTIC_RESTART_COUNT"));
  if (const std::string id = text_of("PMIX_NAMESPACE"); !id.empty()) return id;
  if (const std::string id = text_of("SLURM_JOB_ID"); !id.empty())
    return fmt::format("{}.{}", id, text_of("SLURM_STEP_ID"));
  return {};
}

}  // namespace

Launch find_launch(const WorldOptions& options) {
  const bool explicit_place = options.rank >= 0 || options.world_size > 0;
  if (explicit_place && (options.rank < 0 || options.rank >= options.world_size))
    fail<ValueError>(
        "from_environment: rank and world_size go together, with 0 <= rank < world_size; got rank "
        "{} and "
        "world_size {}",
        options.rank, options.world_size);
  Launch launch = explicit_place ? Launch{.rank = options.rank,
                                          .size = options.world_size,
                                          .found = fmt::format("rank={} world_size={}",
                                                               options.rank, options.world_size)}
                                 : read_environment();
  if (explicit_place)
    for (const Family& family : {open_mpi, pmi, slurm})
      launch.by_mpi |= !text_of(family.size).empty();
  if (options.local_rank >= 0) launch.local_rank = options.local_rank;
  launch.rendezvous = options.rendezvous.empty() ? master_address() : options.rendezvous;
  launch.run_id = options.run_id.empty() ? run_id() : options.run_id;
  return launch;
}

}  // namespace tutti::distributed
