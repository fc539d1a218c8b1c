// Measures all-reduces of float32 beside MPI's own MPI_Iallreduce, which takes turns with them on a
// communicator of its own, and prints medians of the slowest rank. Run it under a launcher:
// mpirun -n 2 all_reduce_mpi. TUTTI_RANKS_PER_HOST=2 mpirun -n 4 all_reduce_mpi emulates two hosts,
// of which MPI does not know.
#include "timing.h"

#include <fmt/format.h>
#include <tutti/core/create.h>
#include <tutti/distributed/process_group.h>

#include <mpi.h>

namespace tutti::benchmarks {
namespace {

constexpr int rounds = 15;
constexpr std::int64_t sizes[] = {8,       256,     8 << 10, 64 << 10, 256 << 10,
                                  1 << 20, 4 << 20, 8 << 20, 25 << 20, 64 << 20};

int calls_of(std::int64_t bytes) { return bytes > 2 << 20 ? 3 : bytes > 64 << 10 ? 20 : 400; }

// Returns the microseconds of one call of many in a row, on the slowest rank.
template <class Call>
double microseconds_of(const ProcessGroup& group, int calls, const Call& call) {
  group.barrier();
  const double seconds = seconds_of([&] {
    for (int i = 0; i < calls; ++i) call();
  });
  const Tensor slowest = full({}, 1e6 * seconds / calls, {.dtype = float64});
  group.all_reduce(slowest, distributed::ReduceOp::max).wait();
  return slowest.item<double>();
}

void compare(const ProcessGroup& group, MPI_Comm comm, std::int64_t bytes) {
  const Tensor data = zeros({bytes / 4});
  float* const values = data.data<float>();
  const int calls = calls_of(bytes);
  std::vector<double> ours, plain;
  for (int round = 0; round < rounds; ++round) {
    ours.push_back(microseconds_of(group, calls, [&] { group.all_reduce(data).wait(); }));
    plain.push_back(microseconds_of(group, calls, [&] {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Iallreduce(MPI_IN_PLACE, values, static_cast<int>(bytes / 4), MPI_FLOAT, MPI_SUM, comm,
                     &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }));
  }
  if (group.rank() == 0)
    fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} |\n", bytes, median(ours), median(plain),
               median(plain) / median(ours));
}

}  // namespace
}  // namespace tutti::benchmarks

int main() {
  using namespace tutti;
  const ProcessGroup group = ProcessGroup::from_environment();
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  if (group.rank() == 0)
    fmt::print(
        "{} ranks\n\n| bytes | tutti us | MPI_Iallreduce us | its time over ours |\n| --- | --- | "
        "--- | --- |\n",
        group.size());
  for (const std::int64_t bytes : benchmarks::sizes) benchmarks::compare(group, comm, bytes);
  MPI_Comm_free(&comm);
}
