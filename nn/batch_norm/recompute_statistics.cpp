#include "recompute_statistics.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../../core/create.h"
#include "statistics_run.h"

namespace tutti::nn {

std::vector<std::string> recompute_statistics(Module& module,
                                              const std::function<void()>& run_batches,
                                              const ProcessGroup& group) {
  const NoGrad no_grad;
  std::vector<StatisticsRun> runs = start_statistics_runs("recompute_statistics", module, group);
  run_batches();
  if (runs.empty()) return {};
  std::vector<Tensor> parts;
  for (const StatisticsRun& run : runs) parts.push_back(run.moments());
  const Tensor mine = cat(parts);
  const Tensor all = empty({group.size(), mine.numel()}, {float64, mine.device()});
  group.all_gather(mine, all, {.name = "recompute_statistics"}).wait();

  std::vector<std::string> replaced;
  std::int64_t begin = 0;
  for (StatisticsRun& run : runs) {
    const std::int64_t end = begin + 1 + 2 * run.channels();
    if (run.finish(all.slice(1, begin, end))) replaced.push_back(run.path());
    begin = end;
  }
  return replaced;
}

}  // namespace tutti::nn
