// Workspace: device memory for the partial sums of one launch.
#pragma once

#include "../../core/create.h"
#include "batch_norm_reduction.h"
#include "block_counters.h"

namespace tutti::kernels::cuda {

/// Owns the memory. The destructor frees it in stream order, so that it may run right after the
/// launch.
class Workspace {
 public:
  /// Allocates `values` pairs of doubles and `counts` doubles.
  Workspace(Device device, std::int64_t values, std::int64_t counts)
      : device_(device.index()), values_(values) {
    if (values > 0) memory_ = empty({2 * values + counts}, {float64, device});
  }
  Partials partials() const {
    double* data = memory_.defined() ? memory_.data<double>() : nullptr;
    return {reinterpret_cast<double2*>(data), data ? data + 2 * values_ : nullptr,
            block_counters(device_)};
  }

 private:
  int device_;
  std::int64_t values_;
  Tensor memory_;
};

}  // namespace tutti::kernels::cuda
