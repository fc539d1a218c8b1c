// count_change() counts the changes in place of the data that tensors share. Every operation that
// writes a tensor in place calls it.
#pragma once

#include "memory.h"

namespace tutti {

/// Raises the storage's version. Where a kernel keeps something beside the data and a cuda::Graph
/// is captured, each of its replays does so, too.
void count_change(const std::shared_ptr<Storage>& storage);

}  // namespace tutti
