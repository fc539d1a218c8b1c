// pool_statistics() gives the ranks one set of running statistics where SyncBatchNorm layers share
// theirs with some ranks only (those of a host, or k each), or with none. It needs no data, unlike
// recompute_statistics().
#pragma once

#include "layer.h"

namespace tutti::nn {

/// Sets the running statistics of every BatchNorm in `module` to those of all ranks of `group`
/// together, on every rank. Call it before evaluation and before weights are saved. Every rank of
/// `group` calls it, with layers of the same paths and channels; it makes one all-reduce of
/// 8 (2 + 2C) bytes a layer for all layers together, and none where no layer needs it.
///
/// With running mean m_r, running variance v_r and weight w_r on rank r, and W the sum of the
/// weights:
///
///   mean = sum w_r m_r / W        var = sum w_r (v_r + (m_r - mean)^2) / W
///
/// A rank's weight is its share of what its statistics count: the values, in a layer with
/// Options::pooled; the batches, where the momentum has no value; 1 with a momentum, whose average
/// reaches equally far back on all ranks; and 0 before the first batch. So groups of more ranks
/// weigh more. A second call changes nothing but the last bits. The sums are float64: the relative
/// error of the variance is about 1e-16 (ranks + mean^2 / var).
///
/// Layers whose statistics all ranks share already are left alone, as are those that track none or
/// are frozen, and layers that no rank has trained. Counts become those of the average rank:
/// batches are rounded up, and values are those of its group. Returns the paths of the layers that
/// were pooled. ValueError, on the rank that finds it, if a layer shares its statistics with ranks
/// that are not in `group`.
std::vector<std::string> pool_statistics(Module& module,
                                         const ProcessGroup& group = distributed::world());

}  // namespace tutti::nn
