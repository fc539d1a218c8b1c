#include "flag_values.h"
#include "flags.h"
#include "option_words.h"

namespace tutti::examples {

void add_rank_flags(CLI::App& app, TrainOptions& o) {
  app.add_flag("--sync-bn,!--no-sync-bn", o.sync_bn,
               "Batch normalisation over the global batch (the default), or over each rank's own "
               "part of it");
  add_parsed(
      app, "--sync-bn-scope",
      [&](const std::string& text) { o.sync_bn_scope = sync_bn_scope_from_string(text); },
      "The ranks that share the statistics of a batch: world (all), host (those of one host) or a "
      "number of ranks that follow each other; tests and files get the average of all [world]");
  app.add_flag("--sharded", o.sharded,
               "Each rank trains on its own part of the images, in batches of its own, instead of "
               "on its part of every global batch");
  add_parsed(
      app, "--uneven", [&](const std::string& text) { o.uneven = uneven_from_string(text); },
      "With --sharded, ranks whose images are used up before those of the others in an epoch: "
      "shadow (go on with empty batches), stop (the epoch ends for all) or error [shadow]");
  app.add_option_function<double>(
         "--timeout",
         [&](double seconds) {
           o.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
         },
         "Seconds that a rank waits for the others, at the start and in every step, before all end "
         "with an error that names the absent ranks [300]")
      ->check(between(0.1, 1e6));
}

}  // namespace tutti::examples
