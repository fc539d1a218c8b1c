// recompute_statistics() replaces the running statistics of a model's BatchNorm layers by the exact
// ones of a set of batches ("precise batch norm": Wu and Johnson, "Rethinking 'Batch' in
// BatchNorm", 2021, section 3). Running averages lag behind weights that still change, which makes
// evaluation worse than training; recomputed statistics do not.
#pragma once

#include "layer.h"

#include <functional>

namespace tutti::nn {

/// Calls `run_batches`, which runs forwards of `module`, and sets running_mean and running_var of
/// every BatchNorm in it to mean and unbiased variance of all values that it has seen, as if all
/// batches, of all ranks of `group`, had been one batch. Batches may differ in size between calls
/// and ranks, and a rank may run none; but a layer with a process group synchronises its forwards,
/// so the ranks of that group run the same number of batches, of which some may be empty. Returns
/// the paths of the layers whose statistics were replaced: a layer that tracks none, that is
/// frozen, or that saw no value on any rank is left as it is.
///
/// Meanwhile these layers normalise by the statistics of the batch, as in training; every other
/// module stays in the mode that the caller has set, and no gradients are recorded. Only the
/// running statistics change. Every rank of `group` calls this function, with layers of the same
/// paths and channels; it runs one collective for all layers. If `run_batches` throws, nothing has
/// changed. ValueError, before anything runs, if a layer shares its statistics with ranks that are
/// not in `group`: they would keep others.
std::vector<std::string> recompute_statistics(Module& module,
                                              const std::function<void()>& run_batches,
                                              const ProcessGroup& group = distributed::world());

}  // namespace tutti::nn
