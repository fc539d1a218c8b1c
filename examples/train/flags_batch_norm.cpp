#include "flag_values.h"
#include "flags.h"

namespace tutti::examples {

void add_batch_norm_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--recompute-statistics", o.recompute_statistics,
                 "Before each evaluation, replace the running averages of batch normalisation by "
                 "the statistics of this many training batches; 0 for not")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
  app.add_flag("--bn-report", o.bn_report,
               "At the end of each epoch, examine every batch normalisation on training batches: "
               "running against batch statistics, dead channels, ranks that stray; with advice");
}

}  // namespace tutti::examples
