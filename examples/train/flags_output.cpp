#include "flag_values.h"
#include "flags.h"

namespace tutti::examples {

void add_output_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--log-every", o.log_every, "Steps between two lines of metrics.jsonl")
      ->check(positive(1'000'000'000))
      ->capture_default_str();
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "Steps between two checkpoints in the run folder, beside those at the end of each "
                 "epoch; 0 for none")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
  app.add_flag(
      "--resume", o.resume,
      "Go on from the run folder's last checkpoint, to the same bits as without the stop, or "
      "to rounding on another number of ranks; from the beginning where there is none");
  app.add_flag("--overwrite", o.overwrite,
               "Remove the files of an older run from the run folder, and begin anew; without this "
               "flag and --resume such a folder is refused");
  app.add_flag(
      "--dry-run", o.dry_run,
      "Print the model, the length of the run, the memory of a rank and what it sends in a "
      "step, and exit without writing anything");
  app.add_flag(
      "--tensorboard", o.tensorboard,
      "Write the metrics as event files into the run folder, too: tensorboard --logdir runs");
  app.add_option("--trace", o.trace,
                 "Write a timeline of the run to this file, to be opened at ui.perfetto.dev; keep "
                 "the run short: a step has hundreds of events");
  app.add_option("--out", o.out,
                 "Run folder for metrics, weights and report (default: runs/DATASET-MODEL)");
}

}  // namespace tutti::examples
