// Turning the BatchNorm layers of a model into SyncBatchNorm and back. Since the two are one
// implementation, this attaches a group to each layer, in place, and takes it off again: nothing
// else of the model changes.
#pragma once

#include "layer.h"

#include <functional>

namespace tutti::nn {

/// Which layers to touch, by path and layer; none: all.
using ConvertFilter = std::function<bool(const std::string& path, const BatchNorm& layer)>;

/// Every BatchNorm in `module` (itself included) that has no group yet shares its statistics with
/// `group` from now on; a layer that has one keeps it. Parameters, buffers, options, hooks,
/// training flag, names and subclasses stay, so an optimizer or a DataParallel made before stays
/// valid. Returns the paths of what was converted, each layer once. No communication.
std::vector<std::string> convert_sync_batchnorm(Module& module,
                                                const ProcessGroup& group = distributed::world(),
                                                const ConvertFilter& filter = {});

/// Undoes that: takes the group off every BatchNorm in `module` that got it from
/// convert_sync_batchnorm. A layer that had one of its own, such as a SyncBatchNorm, keeps it
/// (layer.set_process_group({}) takes it off). Returns the paths of what was reverted.
std::vector<std::string> revert_sync_batchnorm(Module& module, const ConvertFilter& filter = {});

/// BatchNorm::check_statistics() of every layer in `module`.
void check_batch_statistics(Module& module);

}  // namespace tutti::nn
