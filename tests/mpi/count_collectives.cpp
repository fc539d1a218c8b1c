// The program whose messages count_messages.sh counts: all-reduces of one size, and nothing else.
// Usage: mpi_count_collectives BYTES CALLS
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/process_group.h>

#include <cstdlib>

int main(int argc, char** argv) {
  using namespace tutti;
  if (argc != 3) return 64;
  set_num_threads(1);
  const ProcessGroup group = ProcessGroup::from_environment(std::chrono::minutes(2));
  const Tensor data = ones({std::atoll(argv[1]) / 8}, {.dtype = float64});
  for (int i = 0; i < std::atoi(argv[2]); ++i)
    group.all_reduce(data, distributed::ReduceOp::mean).wait();
  return data.select(0, 0).item<int>() == 1 ? 0 : 1;
}
