#include "flag_values.h"
#include "flags.h"

#include <tutti/core/parallel.h>

#include <algorithm>

namespace tutti::examples {

void add_length_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--epochs", o.epochs, "Passes over the training images")
      ->check(positive(1'000'000))
      ->capture_default_str();
  app.add_option("--max-steps", o.max_steps,
                 "Stop after this many steps, 0 for no limit; the schedule fits itself in")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
  app.add_option("--patience", o.patience,
                 "Stop early after this many epochs without a better test accuracy; 0 for never")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
  app.add_option("--batch-size", o.batch_size,
                 "Global batch: images per step over all ranks together")
      ->check(positive(1 << 20))
      ->capture_default_str();
  app.add_flag("--drop-last", o.drop_last,
               "Leave out the last batch of an epoch if it is not full; every epoch leaves out "
               "other images");
  app.add_option("--accumulate", o.accumulate,
                 "Compute each step in this many micro batches, one after the other, to need less "
                 "memory; batch normalisation then sees one of them at a time")
      ->check(positive(1 << 20))
      ->capture_default_str();
  app.add_option("--ranks", o.ranks,
                 "Ranks that are threads of this process; leave at 1 under mpirun")
      ->check(between(1, 1024))
      ->capture_default_str();
  app.add_option("--threads", o.threads,
                 "Threads each rank computes with, 0 for its share of the cores")
      ->check(between(0, std::max(256, available_cores())))
      ->capture_default_str();
}

}  // namespace tutti::examples
