// These functions turn the BatchNorm layers of a model into SyncBatchNorm and back. The two are one
// class, so each function gives the layers a group or removes it, in place; nothing else of
// the model changes.
#pragma once

#include "layer.h"

#include <functional>

namespace tutti::nn {

/// A function that returns whether to change the layer at this path. An empty filter accepts all
/// layers.
using ConvertFilter = std::function<bool(const std::string& path, const BatchNorm& layer)>;

/// Makes every BatchNorm in `module` (itself included) that has no group share its statistics with
/// `group` from now on; a layer that has a group keeps it. Parameters, buffers, options, hooks,
/// training flag, names and subclasses stay, so an optimizer or a DataParallel that was made before
/// stays valid. Returns the path of each layer that was converted, once. Communicates nothing.
std::vector<std::string> convert_sync_batchnorm(Module& module,
                                                const ProcessGroup& group = distributed::world(),
                                                const ConvertFilter& filter = {});

/// Removes the group of every BatchNorm in `module` that got it from convert_sync_batchnorm. A
/// layer that had a group of its own, such as a SyncBatchNorm, keeps it
/// (layer.set_process_group({}) removes it). Returns the path of each layer that was reverted.
std::vector<std::string> revert_sync_batchnorm(Module& module, const ConvertFilter& filter = {});

/// Calls BatchNorm::check_statistics() of every layer in `module`.
void check_batch_statistics(Module& module);

}  // namespace tutti::nn
