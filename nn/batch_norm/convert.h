// These functions turn the BatchNorm layers of a model into SyncBatchNorm, or into layers that
// normalise by groups of channels. All are modes of one class, so the layers change in place,
// and nothing else of the model changes.
#pragma once

#include "layer.h"

#include <functional>

namespace tutti::nn {

/// A function that returns whether to change the layer at this path. An empty filter accepts all
/// layers.
using ConvertFilter = std::function<bool(const std::string& path, const BatchNorm& layer)>;

/// Makes every BatchNorm in `module` (itself included) that has no group share its statistics with
/// `group` from now on, by default with distributed::world() as in SyncBatchNorm; a layer that has
/// a group keeps it, and one that normalises by groups of channels has nothing to share.
/// Parameters, buffers, options, hooks, training flag, names and subclasses stay, so an optimizer
/// or a DataParallel that was made before stays valid. Returns the path of each layer that was
/// converted, once. Communicates nothing.
std::vector<std::string> convert_sync_batchnorm(Module& module,
                                                const std::optional<ProcessGroup>& group = {},
                                                const ConvertFilter& filter = {});

/// Makes every BatchNorm in `module` (itself included) normalise each sample over `groups` groups
/// of channels from now on, as a GroupNorm (BatchNorm::normalize_by_groups), and returns the path
/// of each layer that was converted. The layers stay objects of their class in their place, with
/// their weights, hooks and names, so typed references and optimizers stay valid; a fused residual
/// or ReLU is computed in a pass of its own. Their running statistics leave the state dict, which
/// then has the names of a model with GroupNorm layers: load states of the BatchNorm model before.
/// The model computes something else than before and has to be trained; there is no way back.
/// Layers that are folded or normalise by groups already stay as they are. ValueError, and no
/// change, if `groups` does not divide the channels of a layer, or a layer has a process group or
/// an eps that is a floor.
std::vector<std::string> convert_batchnorm_to_groupnorm(Module& module, std::int64_t groups,
                                                        const ConvertFilter& filter = {});

/// Sets BatchNorm::Options::recompute_output of every BatchNorm in `module` (itself included) whose
/// path matches `pattern` (nn::matches), and returns the paths of these layers. Their outputs then
/// take no memory from forward to backward, which may halve the memory of a step, for one more pass
/// over each output in backward. All results stay equal to the bit. ValueError if no layer matches.
std::vector<std::string> set_recompute_output(Module& module, const std::string& pattern = "*",
                                              bool on = true);

/// Calls BatchNorm::check_statistics() of every layer in `module`.
void check_batch_statistics(Module& module);

}  // namespace tutti::nn
