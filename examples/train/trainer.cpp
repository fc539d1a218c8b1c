#include "trainer.h"

#include "placement.h"
#include "training_run.h"

#include <tutti/core/cuda/settings.h>
#include <tutti/core/parallel.h>

namespace tutti::examples {

namespace {

void choose_how_to_compute(const TrainOptions& options, const ProcessGroup& group) {
  set_num_threads(options.threads > 0 ? options.threads : threads_of_rank(group));
  cuda::settings().allow_tf32 = options.allow_tf32;
  cuda::settings().autotune = options.autotune;
}

}  // namespace

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

LossAndAccuracy test_weights(const TrainOptions& options, const TrainingData& data,
                             const ProcessGroup& group, std::FILE* screen) {
  choose_how_to_compute(options, group);
  return TrainingRun(options, data, group, screen, nullptr).test();
}

}  // namespace tutti::examples
