// The main job: trains a ResNet on one rank or many. This file is the program around
// examples/train: which ranks there are, and what becomes of errors: one line, and exit code 2 for
// a wrong flag or bad data, 1 for anything else.
#include "train/checkpoint.h"
#include "train/placement.h"
#include "train/timeline.h"
#include "train/trainer.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/distributed/backends/nccl/nccl.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>

namespace {

using namespace tutti;
using namespace tutti::examples;

/// Thrown where another rank has the error and says it.
struct FailedElsewhere {};

/// Calls `prepare` on every rank. Where it throws on one, all end: the first such rank with its
/// error.
template <class Prepare>
void agree(const ProcessGroup& group, const Prepare& prepare) {
  std::exception_ptr problem;
  try {
    prepare();
  } catch (...) {
    problem = std::current_exception();
  }
  const Tensor failing = full({}, problem ? group.rank() : group.size(), {.dtype = int64});
  group.all_reduce(failing, distributed::ReduceOp::min, {.name = "start"}).wait();
  const int who = failing.item<int>();
  if (who == group.rank()) std::rethrow_exception(problem);
  if (who < group.size()) throw FailedElsewhere{};
}

// Whether each of this host's ranks can have a device of its own, through NCCL then.
bool one_device_each(const TrainOptions& options, int ranks_here) {
  return options.device.is_cuda() && distributed::nccl::why_unavailable().empty() &&
         options.device.index() + ranks_here <= cuda::device_count();
}

// The processes' group to train with: NCCL's where all of them can have a device of their own.
ProcessGroup group_for(const TrainOptions& options, const ProcessGroup& world) {
  if (world.size() == 1 || !options.device.is_cuda() || world.backend() == "nccl") return world;
  const Tensor fit = full({}, one_device_each(options, world.local_rank() + 1), {.dtype = int64});
  world.all_reduce(fit, distributed::ReduceOp::min, {.name = "a device for each rank"}).wait();
  if (fit.item<int>() == 0) return world;
  return ProcessGroup::from_environment(
      {.backend = "nccl", .device = device_of_rank(options, world.local_rank()).index()});
}

void run(int argc, char** argv, const ProcessGroup& world) {
  TrainOptions options;
  bool wanted = false;
  Datasets data;
  agree(world, [&] {
    wanted = parse(argc, argv, options, world.rank() == 0);
    if (!wanted) return;
    if (options.ranks > 1 && world.size() > 1)
      fail<UsageError>("--ranks {} and {} processes: use one of the two", options.ranks,
                       world.size());
    if (options.device.is_cuda())
      empty({1}, {.device = options.device});  // says why, where there is none
    data = load_datasets(options.dataset, options.data);
    if (world.rank() == 0) RunFolder::prepare(options.out);
    if (world.rank() == 0 && options.resume)
      load_checkpoint(options, std::max(options.ranks, world.size()));
  });
  if (!wanted) return;
  std::optional<Timeline> timeline;  // written in any case, also where training fails
  world.barrier({.name = "start"});
  agree(world, [&] {
    if (!options.trace.empty()) timeline.emplace(options.trace, world);
  });
  const auto train_rank = [&](const ProcessGroup& group) {
    if (!options.sharded) return void(train(options, data, group, stdout));
    const Datasets own{shard(data.train, group.rank(), group.size()), data.test};
    train(options, own, group, stdout);
  };
  // Threads have devices 0, 1, ... there.
  const bool through_nccl = one_device_each(options, options.ranks) && options.device.index() == 0;
  try {
    if (options.ranks == 1) train_rank(group_for(options, world));
    else
      distributed::run_ranks(options.ranks, train_rank,
                             {.backend = through_nccl ? "nccl" : "local"});
  } catch (const std::exception& error) {
    world.abort(error.what());  // the others may be waiting for this rank
    throw;
  }
  if (timeline) timeline->finish();
}

int say(const ProcessGroup& world, const std::string& message, int code) {
  const std::string who = world.size() > 1 ? fmt::format(" (rank {})", world.rank()) : "";
  fmt::print(stderr, "train_resnet{}: {}\n", who, message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  ProcessGroup world;
  try {
    world = ProcessGroup::from_environment();
    run(argc, argv, world);
    return 0;
  } catch (const FailedElsewhere&) {
    return 2;
  } catch (const UsageError& error) {
    return say(world, error.what(), 2);
  } catch (const DataError& error) {
    return say(world, error.what(), 2);
  } catch (const CheckpointError& error) {
    return say(world, error.what(), 2);
  } catch (const ValueError& error) {
    return say(world, error.what(), 2);
  } catch (const DeviceError& error) {
    return say(world, error.what(), 2);
  } catch (const std::exception& error) {
    return say(world, error.what(), 1);
  }
}
