#include "devices.h"

#include "../../core/create.h"
#include "../../core/cuda/runtime.h"
#include "../../core/hash.h"
#include "../backends/mpi/mpi.h"
#include "../backends/nccl/nccl.h"

#include <cstdlib>
#include <cstring>
#include <map>

namespace tutti::distributed {
namespace {

bool is_set(const char* variable, const std::string& value) {
  const char* text = std::getenv(variable);
  return text && text == value;
}

// Whether a rank has a GPU for NCCL, and if not, why.
enum class Place : std::int64_t { usable, switched_off, no_nccl, no_threads, no_gpu, wrong_device };

const char* reason_of(Place place) {
  switch (place) {
    case Place::usable: break;
    case Place::switched_off: return "is told not to use NCCL";
    case Place::no_nccl: return "cannot use NCCL";
    case Place::no_threads: return "has an MPI without MPI_THREAD_MULTIPLE, which NCCL needs here";
    case Place::no_gpu: return "has no GPU of its own";
    case Place::wrong_device: return "wants a CUDA device that is not there";
  }
  return "";
}

// What a rank tells the others.
struct Seat {
  Place place = Place::usable;
  std::int64_t device = 0;
  std::uint64_t gpu = 0;  // a number of the GPU in all processes that see it
};
static_assert(sizeof(Seat) == 3 * sizeof(std::int64_t));

// Returns the seat of a rank that may use NCCL.
Seat find_seat(int rank, int device) {
  if (!nccl::why_unavailable().empty()) return {.place = Place::no_nccl};
  if (device >= cuda::device_count()) return {.place = Place::no_gpu};
  Seat seat{.device = device, .gpu = nccl::gpu_number(device)};
  if (is_set("TUTTI_NCCL_SHARE_GPU", "1"))  // then the GPU counts as one of this rank's own
    seat.gpu = Hash64().add(seat.gpu).add(static_cast<std::uint64_t>(rank)).value();
  return seat;
}

// Returns why CUDA tensors are staged where the ranks have these seats; empty where NCCL carries
// them. `own` is the seat of this rank, which knows why NCCL is missing only where it is missing
// here.
std::string why_staged(const std::vector<Seat>& seats, const Seat& own) {
  const std::string why_no_nccl = own.place == Place::no_nccl ? ": " + nccl::why_unavailable() : "";
  std::map<std::uint64_t, std::size_t> rank_of_gpu;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto& [place, device, gpu] = seats[rank];
    if (place != Place::usable)
      return fmt::format("rank {} {}{}", rank, reason_of(place),
                         place == Place::no_nccl ? why_no_nccl : "");
    const auto [first, is_new] = rank_of_gpu.emplace(gpu, rank);
    if (!is_new) return fmt::format("ranks {} and {} have the same GPU", first->second, rank);
  }
  return {};
}

void set_devices(World& world, const std::vector<Seat>& seats, const Seat& own) {
  if (std::string why = why_staged(seats, own); !why.empty())
    return world.set_why_staged(std::move(why));
  std::vector<int> devices;
  for (const Seat& seat : seats) devices.push_back(static_cast<int>(seat.device));
  nccl::set_environment();
  world.set_devices(std::move(devices), nccl::make_lane);
}

// Gathers the seats of all ranks, in a call that does not count among those of the group.
std::vector<Seat> gather(Backend& group, const Seat& own) {
  const GroupInfo& info = group.info();
  const Tensor input = empty({3}, {.dtype = int64}),
               output = empty({info.size, 3}, {.dtype = int64});
  std::memcpy(input.raw(), &own, sizeof(own));
  Collective call{.operation = Operation::all_gather,
                  .input = input,
                  .output = output,
                  .options = {.name = "the GPUs of the ranks", .timeout = info.timeout}};
  call.fingerprint = fingerprint(call);
  group.submit(call)->wait();
  std::vector<Seat> seats(static_cast<std::size_t>(info.size));
  std::memcpy(static_cast<void*>(seats.data()), output.raw(), seats.size() * sizeof(Seat));
  return seats;
}

}  // namespace

bool may_use_nccl(bool option) { return option && !is_set("TUTTI_NCCL", "0"); }

void set_devices_of_threads(World& world, int ranks, int first_device, bool use_nccl) {
  std::vector<Seat> seats(static_cast<std::size_t>(ranks), {.place = Place::switched_off});
  for (int rank = 0; may_use_nccl(use_nccl) && rank < ranks; ++rank)
    seats[static_cast<std::size_t>(rank)] = find_seat(rank, first_device + rank);
  set_devices(world, seats, seats[0]);
}

void gather_devices(Backend& world_group, const WorldOptions& options) {
  if (!nccl::is_built_in()) return world_group.world()->set_why_staged(nccl::why_unavailable());
  const GroupInfo& info = world_group.info();
  Seat own{.place = Place::switched_off};
  if (may_use_nccl(options.nccl)) {
    const int usual = cuda::device_count() == 1 ? 0 : options.first_device + info.local_rank;
    own = find_seat(info.rank, options.device >= 0 ? options.device : usual);
  }
  if (options.device >= 0 && own.place == Place::no_gpu) own.place = Place::wrong_device;
  if (own.place == Place::usable && !mpi::allows_threads()) own.place = Place::no_threads;
  const std::vector<Seat> seats = gather(world_group, own);
  for (std::size_t rank = 0; rank < seats.size(); ++rank)
    if (seats[rank].place == Place::wrong_device)
      fail<DistributedError>("from_environment: rank {} {}", rank, reason_of(seats[rank].place));
  set_devices(*world_group.world(), seats, own);
}

}  // namespace tutti::distributed
