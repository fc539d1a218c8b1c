// Joins the tables of one level of processors.
#include "tables.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

// Each is defined in the source of its family.
const BatchNorm& batch_norm();
const Elementwise& elementwise();
const Embedding& embedding();
const Indexing& indexing();
const LayerNorm& layer_norm();
const Optimizer& optimizer();
const Pooling& pooling();
const Reduce& reduce();
const Softmax& softmax();
const WinogradTransforms& winograd_transforms();
void reference_matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                      const Tensor& out);
bool small_matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);

Tables tables() {
  return {.batch_norm = batch_norm(),
          .elementwise = elementwise(),
          .embedding = embedding(),
          .indexing = indexing(),
          .layer_norm = layer_norm(),
          .optimizer = optimizer(),
          .pooling = pooling(),
          .reduce = reduce(),
          .softmax = softmax(),
          .winograd_transforms = winograd_transforms(),
          .reference_matmul = reference_matmul,
          .small_matmul = small_matmul};
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
