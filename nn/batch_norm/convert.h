// These functions turn the BatchNorm layers of a model into SyncBatchNorm and back. Both are modes
// of one class, so the layers change in place, and nothing else of the model changes.
#pragma once

#include "layer.h"

#include <functional>

namespace tutti::nn {

/// A function that returns whether to change the layer at this path. An empty filter accepts all
/// layers.
using ConvertFilter = std::function<bool(const std::string& path, const BatchNorm& layer)>;

/// Makes every BatchNorm in `module` (itself included) that has no group share its statistics with
/// `group` from now on, by default with distributed::world() as in SyncBatchNorm; a layer that has
/// a group keeps it. Parameters, buffers, options, hooks, training flag, names and subclasses stay,
/// so an optimizer or a DataParallel that was made before stays valid. Returns the path of each
/// layer that was converted, once. Communicates nothing.
std::vector<std::string> convert_sync_batchnorm(Module& module,
                                                const std::optional<ProcessGroup>& group = {},
                                                const ConvertFilter& filter = {});

/// Removes the group of every BatchNorm in `module` that got it from convert_sync_batchnorm. A
/// layer that had a group of its own, such as a SyncBatchNorm, keeps it
/// (layer.set_process_group({}) removes it). Returns the path of each layer that was reverted.
std::vector<std::string> revert_sync_batchnorm(Module& module, const ConvertFilter& filter = {});

/// Sets BatchNorm::Options::recompute_output of every BatchNorm in `module` (itself included) whose
/// path matches `pattern` (nn::matches), and returns the paths of these layers. Their outputs then
/// take no memory from forward to backward, which may halve the memory of a step, for one more pass
/// over each output in backward. All results stay equal to the bit. ValueError if no layer matches.
std::vector<std::string> set_recompute_output(Module& module, const std::string& pattern = "*",
                                              bool on = true);

/// Calls BatchNorm::check_statistics() of every layer in `module`.
void check_batch_statistics(Module& module);

}  // namespace tutti::nn
