// SyncBatchNorm is a BatchNorm that has a process group from the start. functional.h says what it
// computes; convert.h gives a group to existing layers. docs/design/batch_norm.md compares it with
// other implementations.
#pragma once

#include "layer.h"

namespace tutti::nn {

/// BatchNorm over the ranks of a group, for input of any shape (N, C, ...). See BatchNorm for what
/// it computes.
class SyncBatchNorm : public BatchNorm {
 public:
  /// Without `options.group` the layer uses distributed::world(), also where
  /// ProcessGroup::from_environment() comes after the model but before its first forward in
  /// training. A model that one rank alone builds takes ProcessGroup(), the group of that rank.
  explicit SyncBatchNorm(Options options) : BatchNorm(std::move(options)) {
    if (!process_group()) share_with_world();
  }
};

}  // namespace tutti::nn
