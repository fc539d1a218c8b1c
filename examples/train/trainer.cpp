#include "trainer.h"

#include "training_run.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/core/parallel.h>

#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

namespace tutti::examples {
namespace {

void choose_how_to_compute(const TrainOptions& options, const ProcessGroup& group) {
  set_num_threads(options.threads > 0 ? options.threads : threads_of_rank(group));
  cuda::settings().allow_tf32 = options.allow_tf32;
  cuda::settings().autotune = options.autotune;
}

}  // namespace

// [snippet]
TrainResult train(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
                  std::FILE* screen, const StopRequest* stop) {
  choose_how_to_compute(options, group);
  TrainingRun run(options, data, group, screen, stop);
  run.begin();
  for (;;) {
    if (run.has_untested_epoch()) {
      run.evaluate_epoch();
      run.save_checkpoint();
      if (run.is_stopped()) return run.finish_early();
    }
    if (run.is_done()) return run.finish();
    if (!run.train_epoch()) return run.finish_early();
    run.save_checkpoint();  // so that an evaluation that fails loses no training
  }
}
// [/snippet]

LossAndAccuracy test_weights(const TrainOptions& options, const TrainingData& data,
                             const ProcessGroup& group, std::FILE* screen) {
  choose_how_to_compute(options, group);
  return TrainingRun(options, data, group, screen, nullptr).test();
}

// ---- placement

namespace {

// Identifies the cores that this rank may run on: the host's name and the affinity mask. Ranks with
// the same identity compete for cores; mpirun may or may not have bound each rank to its own.
std::int64_t hash_of_cores() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  std::string identity(host.data());
  identity.append(reinterpret_cast<const char*>(&cores), sizeof(cores));
  return static_cast<std::int64_t>(std::hash<std::string_view>{}(identity));
}

}  // namespace

Device device_of_rank(const TrainOptions& options, int local_rank) {
  if (options.device.is_cpu()) return options.device;
  const int count = cuda::device_count(), index = options.device.index() + local_rank;
  return Device::cuda(index < count || count == 0 ? index : index % count);
}

int threads_of_rank(const ProcessGroup& group) {
  const std::int64_t own = hash_of_cores();
  const Tensor mine = empty({1}, {.dtype = int64}),
               all = empty({group.size(), 1}, {.dtype = int64});
  *mine.data<std::int64_t>() = own;
  group.all_gather(mine, all, {.name = "cores"}).wait();
  const auto* first = all.data<std::int64_t>();
  const auto sharing = static_cast<int>(std::count(first, first + group.size(), own));
  return std::max(1, available_cores() / sharing);
}

}  // namespace tutti::examples
