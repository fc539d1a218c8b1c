#include "communicator.h"

#include "library.h"
#include "mpi.h"
#include "watchdog.h"

#include <cmath>

namespace tutti::distributed::mpi {
namespace {

std::string name_members(const std::vector<int>& members) {
  return members.size() <= 16 ? ranks_to_string(members) + " of their parent group"
                              : fmt::format("{} ranks of a group", members.size());
}

// Tags of MPI_Comm_create_group, which keep the communicators of a group apart.
constexpr int tag_of_all = 1, tag_of_host = 2, tag_across_hosts = 3;

// Returns the lowest rank on the host of each of `size` ranks. The host of this one has so many
// ranks, of which `own_lowest` is the lowest. An all-reduce of three numbers tells whether all
// hosts have as many ranks, which follow each other. Only where they have not is a number for each
// rank sent to each rank. All processes call it.
std::vector<int> lowest_ranks(int rank, int size, int on_host, int own_lowest) {
  std::vector<int> lowest(static_cast<std::size_t>(size));
  const auto usual = [&](int r) { return r / on_host * on_host; };
  const int mine[] = {on_host, -on_host, own_lowest != usual(rank)};
  int most[std::size(mine)];
  {
    const BlockingCall guard("MPI_Allreduce", "all processes");
    check(MPI_Allreduce(mine, most, std::size(mine), MPI_INT, MPI_MAX, MPI_COMM_WORLD),
          "MPI_Allreduce");
  }
  if (most[0] == -most[1] && !most[2]) {
    for (int r = 0; r < size; ++r) lowest[static_cast<std::size_t>(r)] = usual(r);
    return lowest;
  }
  const BlockingCall guard("MPI_Allgather", "all processes");
  check(MPI_Allgather(&own_lowest, 1, MPI_INT, lowest.data(), 1, MPI_INT, MPI_COMM_WORLD),
        "MPI_Allgather");
  return lowest;
}

// Returns the number of slices of large data with which the busiest ranks of all hosts carry least.
// Hosts of 8, 8 and 1 rank take 8: the ranks of the large hosts share what the single one has to
// carry alone. Hosts of 8 and 7 take 7, because of 8 slices one rank of the second would have two.
std::size_t slices_for(const HostLayout& layout) {
  const auto load = [&](std::size_t slices) {
    double sum = 0;
    for (const std::vector<int>& host : layout.hosts)
      sum += std::ceil(static_cast<double>(slices) / static_cast<double>(host.size()));
    return sum / static_cast<double>(slices);
  };
  std::size_t best = layout.fewest_ranks();
  for (std::size_t slices = best; slices <= layout.most_ranks(); ++slices)
    if (load(slices) < load(best)) best = slices;
  return best;
}

}  // namespace

Communicator::Communicator(MPI_Comm parent, const std::vector<int>& members, int tag, World* world)
    : world_(world) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some),
        "MPI_Group_incl");
  int code = MPI_SUCCESS;
  {
    const BlockingCall guard("MPI_Comm_create_group", name_members(members));
    code = MPI_Comm_create_group(parent, some, tag, &comm_);
  }
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check(code, "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Communicator::~Communicator() {
  if (comm_ == MPI_COMM_NULL || !is_usable()) return;
  try {
    if (world_ && world_->poll()) return;
  } catch (const std::exception&) {
    return;  // an error of MPI counts as a failure
  }
  const BlockingCall guard("MPI_Comm_free", "the other ranks of a group that ends");
  MPI_Comm_free(&comm_);
}

void find_hosts(GroupInfo& world) {
  MPI_Comm host = MPI_COMM_NULL;
  int lowest = 0, on_host = 1;
  {
    const BlockingCall guard("MPI_Comm_split_type", "all processes");
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
          "MPI_Comm_split_type");
  }
  check(MPI_Comm_rank(host, &world.local_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(host, &on_host), "MPI_Comm_size");
  {
    const BlockingCall guard("MPI_Allreduce", "all processes of this host");
    check(MPI_Allreduce(&world.rank, &lowest, 1, MPI_INT, MPI_MIN, host), "MPI_Allreduce");
  }
  {
    const BlockingCall guard("MPI_Comm_free", "all processes of this host");
    MPI_Comm_free(&host);
  }
  if (const int emulated = emulated_ranks_per_host(); emulated > 0) {
    on_host = emulated;
    lowest = world.rank / emulated * emulated;
  }
  world.hosts = lowest_ranks(world.rank, world.size, on_host, lowest);
}

HostCommunicators::HostCommunicators(std::shared_ptr<World> world,
                                     const std::shared_ptr<const GroupInfo>& info, MPI_Comm parent,
                                     const std::vector<int>& members)
    : world_(std::move(world)),
      info_(info),
      layout_(*info),
      slices_(slices_for(layout_)),
      inline_bytes_(inline_limit(static_cast<int>(layout_.most_ranks()))),
      piece_bytes_(piece_limit(layout_.most_ranks(), layout_.is_one_host())) {
  all_.emplace(parent, members, tag_of_all, world_.get());
  if (layout_.is_one_host()) return;
  host_.emplace(all(), layout_.own_host(), tag_of_host, world_.get());
  for (std::size_t slice = layout_.index; slice < slices_; slice += layout_.own_host().size()) {
    std::vector<int> owners;
    for (const std::vector<int>& host : layout_.hosts) owners.push_back(host[slice % host.size()]);
    across_hosts_.try_emplace(slice, all(), owners, tag_across_hosts + static_cast<int>(slice),
                              world_.get());
  }
}

}  // namespace tutti::distributed::mpi
