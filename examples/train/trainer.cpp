#include "trainer.h"

#include "placement.h"
#include "training_run.h"

#include <tutti/core/parallel.h>

namespace tutti::examples {

TrainResult train(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
                  std::FILE* screen) {
  set_num_threads(options.threads > 0 ? options.threads : threads_of_rank(group));
  TrainingRun run(options, data, group, screen);
  run.begin();
  while (!run.is_done()) {
    run.train_epoch();
    run.evaluate_epoch();
    run.save_checkpoint();
  }
  return run.finish();
}

}  // namespace tutti::examples
