// pack_weights() prepares a model for fast inference on the CPU. It changes no value and no shape;
// fold_batch_norm() (batch_norm/fold.h), which changes both, comes before it.
#pragma once

#include "module.h"

namespace tutti::nn {

/// Lets every convolution in `module`, transposed ones included, keep its weight a second time, in
/// the layout that the kernels of the CPU compute with. Otherwise each call converts the weight:
/// with one image, that takes 40% as long as the convolutions of a ResNet-50. The copies are made
/// when they are first needed and take as much memory as the weights, once for each layout that the
/// inputs' shapes ask for; for Winograd's algorithm (kernels/cpu/winograd.h), 4 times as much as a
/// float32 weight.
///
/// Outputs stay the same to the bit. load_state_dict(), an optimizer's step and all other
/// operations in place make the copies anew; after a write through Tensor::data() or by a
/// collective the model must be packed again. A weight that is moved or cast afterwards is no
/// longer packed. Other threads must not run the model during this call, and may afterwards. On
/// CUDA nothing changes.
void pack_weights(Module& module);

}  // namespace tutti::nn
