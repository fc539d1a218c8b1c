// The tables of all kernels of the CPU, of which every level of processors (core/cpu_level.h) has a
// set. dispatch.cpp chooses the set.
#pragma once

#include "../batch_norm.h"
#include "../elementwise.h"
#include "../embedding.h"
#include "../indexing.h"
#include "../layer_norm.h"
#include "../matmul.h"
#include "../optimizer.h"
#include "../pooling.h"
#include "../reduce.h"
#include "../softmax.h"
#include "winograd_transforms.h"

namespace tutti::kernels::cpu {

/// What is compiled for each level. The tables of convolutions and matrix products are not part of
/// it, because oneDNN chooses its own code for the processor.
struct Tables {
  const BatchNorm& batch_norm;
  const Elementwise& elementwise;
  const Embedding& embedding;
  const Indexing& indexing;
  const LayerNorm& layer_norm;
  const Optimizer& optimizer;
  const Pooling& pooling;
  const Reduce& reduce;
  const Softmax& softmax;
  const WinogradTransforms& winograd_transforms;
  /// reference::matmul, which multiplies float64 matrices.
  void (*reference_matmul)(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                           const Tensor& out);
  bool (*small_matmul)(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                       const Tensor& out);
};

}  // namespace tutti::kernels::cpu
