// Mixed precision on CUDA computes with float32 weights that are rounded to 16 bits. An optimizer
// keeps such a copy beside the storage of each weight that was used so, and its kernel writes both,
// so that the next forward rounds nothing. Any other change in place makes the copy stale, which
// the version of the storage shows; the weight is then rounded anew. A copy costs 2 bytes for each
// element for as long as the weight lives.
//
// The first update of a weight makes room for the answer to whether it is used in 16 bits, the
// second one makes the copy. Only updates write here, and they run alone with the weight, so that
// several threads may compute with one weight at a time.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// Returns `weight` in `dtype`: itself, its copy if that is current, or a new tensor. In a captured
/// step the copy is made current before each replay.
Tensor rounded_weight(const Tensor& weight, DType dtype);

/// Returns the copy that an update of `weight` has to write, too, with the present values of the
/// weight; undefined if there is none. An update that is skipped on the device leaves both as they
/// are.
Tensor copy_to_update(const Tensor& weight);

/// Counts an update in place that writes `weight` and the result of copy_to_update().
void count_update(const Tensor& weight, const Tensor& copy);

}  // namespace tutti::kernels
