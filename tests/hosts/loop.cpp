// A program whose ranks communicate all the time, so that a network that is cut is cut in the
// middle of it. Usage: hosts_loop sync_batch_norm|bucket FOLDER [TIMEOUT], in seconds. Every rank
// writes what it catches to FOLDER/rank.R, because a host that is cut off cannot print through
// mpirun. The job ends well when FOLDER/enough exists.
#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

using namespace tutti;

namespace {

void write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text << '\n';
}

void check(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

// Every rank has a batch of equal values, its own number, of which the statistics over the ranks
// are known.
void synchronise(nn::SyncBatchNorm& layer, const ProcessGroup& group) {
  const double n = group.size(), deviation = std::sqrt((n * n - 1) / 12);
  const Tensor x = full({4, 64}, group.rank()).requires_grad_();
  const Tensor y = layer(x);
  sum(y).backward();
  const double expected = (group.rank() - (n - 1) / 2) / deviation;
  check(std::abs(y.select(0, 3).select(0, 63).item<double>() - expected) < 1e-3,
        "SyncBatchNorm has other statistics than those of all ranks");
}

void sum_bucket(const ProcessGroup& group) {
  const Tensor bucket = ones({1 << 18});
  group.all_reduce(bucket, distributed::ReduceOp::sum, {.name = "bucket 0"}).wait();
  check(bucket.select(0, 77777).item<int>() == group.size(), "the sum of the bucket is wrong");
}

// Returns whether rank 0 has found the file `enough`; all ranks return the same.
bool is_enough(const ProcessGroup& group, const std::string& folder) {
  const bool found = group.rank() == 0 && std::filesystem::exists(folder + "/enough");
  const Tensor flag = full({1}, found ? 1 : 0);
  group.all_reduce(flag, distributed::ReduceOp::max, {.name = "enough"}).wait();
  return flag.item<int>() == 1;
}

void loop(const ProcessGroup& group, const std::string& kind, const std::string& folder) {
  nn::SyncBatchNorm layer({.channels = 64, .group = group});
  for (int round = 1; round % 50 != 0 || !is_enough(group, folder); ++round) {
    if (kind == "sync_batch_norm") synchronise(layer, group);
    else sum_bucket(group);
    if (round == 20) write(fmt::format("{}/looping.{}", folder, group.rank()), "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const std::string folder = argv[2], rank = std::getenv("OMPI_COMM_WORLD_RANK");
  write(folder + "/process." + rank, std::to_string(getpid()));
  ProcessGroup group;
  try {
    group = ProcessGroup::from_environment(std::chrono::seconds(argc > 3 ? std::atoi(argv[3]) : 3));
    loop(group, argv[1], folder);
    write(folder + "/rank." + rank, "done");
    return 0;
  } catch (const std::exception& error) {
    write(folder + "/rank." + rank, error.what());
    std::fputs(fmt::format("rank {} caught: {}\n", rank, error.what()).c_str(), stderr);
    group.abort(error.what());
    return 3;
  }
}
