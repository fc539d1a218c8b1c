// Which device a rank trains on, and with how many threads it computes.
#pragma once

#include "options.h"

#include <tutti/distributed/process_group.h>

namespace tutti::examples {

/// Returns the device of a rank. With CUDA, rank r of a host gets device r after the one of
/// `options`; where the host has fewer devices, ranks share them.
Device device_of_rank(const TrainOptions& options, int local_rank);

/// Returns this rank's fair number of threads: the cores that it may run on, divided by the number
/// of ranks of `group` that may run on the same ones. This call is collective.
int threads_of_rank(const ProcessGroup& group);

}  // namespace tutti::examples
