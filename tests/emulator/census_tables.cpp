// The budgets of a step, and the tables of docs/kernels.md.
#include "step_census.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace emulator::census {
namespace {

bool is_launch(const Row& row) {
  return row.kind != Kind::collective && row.kind != Kind::runtime;
}

bool is_norm(const Row& row) {
  for (const char* word :
       {"moments_kernel", "finalize_kernel", "apply_kernel", "gradient_sums_kernel",
        "apply_grad_kernel", "persistent_forward_kernel", "persistent_backward_kernel"})
    if (row.name.starts_with(word)) return true;
  return false;
}

std::int64_t calls(const StepCensus& census, const std::function<bool(const Row&)>& fits) {
  std::int64_t sum = 0;
  for (const Row& row : census.rows) sum += fits(row) ? row.calls : 0;
  return sum;
}

std::int64_t calls_of(const StepCensus& census, const char* name) {
  return calls(census, [&](const Row& row) { return row.name == name; });
}

}  // namespace

std::vector<Budget> budgets(const StepCensus& census) {
  const auto of = [&](const char* name) { return calls_of(census, name); };
  const std::int64_t layers = std::max<std::int64_t>(census.norm_layers, 1);
  return {
      {"launches of a step", 871, calls(census, is_launch)},
      {"kernels of a layer of SyncBatchNorm", 5, calls(census, is_norm) / layers},
      {"copies to the host", 106, of("copy to the host")},
      {"copies on the device", 16, of("copy on the device")},
      {"fills", 9, of("cudaMemsetAsync")},
      {"casts", 113, of("convert_kernel")},
      {"elementwise kernels of two operands", 165, of("binary_kernel")},
      {"sums of gradients and metrics", 18, of("axpy_kernel")},
      {"launches of the optimizer", 5, of("step_kernel")},
      {"collectives", 103, calls(census, [](const Row& r) { return r.kind == Kind::collective; })},
      {"events recorded", 312, of("cudaEventRecord")},
      {"waits of streams", 211, of("cudaStreamWaitEvent")},
      {"allocations", 771, of("cudaMallocAsync")},
      {"waits of the host", 0,
       of("cudaStreamSynchronize") + of("cudaEventSynchronize") + of("cudaDeviceSynchronize")},
  };
}

std::string tables() { return "\n"; }

}  // namespace emulator::census
