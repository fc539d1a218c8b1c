// How gradients are laid out in buckets: which parameter lies in which, and where. Their memory
// comes from the group that will send them; no communication in here.
#pragma once

#include "../../core/state_dict.h"
#include "../process_group.h"

namespace tutti::distributed {

/// A flat tensor in which the gradients of `parameters` (indices) lie, each at a 64-byte boundary.
struct Bucket {
  Tensor flat;
  std::vector<std::size_t> parameters;
  std::vector<Tensor> views;  ///< of `flat`, one for each parameter, in that parameter's own layout
  std::string label;          ///< "bucket 2: layer2.0.*, layer1.*"
};

/// Fills buckets in the order given, one open bucket for each (dtype, device); it is closed before
/// it would exceed `cap_bytes` (`first_bytes` for the first), so that only a single large parameter
/// makes a bucket larger than that. The buckets come in the order in which the last of their
/// parameters does.
std::vector<Bucket> make_buckets(const StateDict& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t first_bytes, std::int64_t cap_bytes,
                                 const ProcessGroup& group = {});

}  // namespace tutti::distributed
