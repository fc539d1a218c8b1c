// Chooses the kernels of the level of this processor, once, and gives out their tables.
#include "../../core/cpu_level.h"
#include "reference_matmul.h"
#include "small_matmul.h"
#include "tables.h"

namespace tutti::kernels::cpu {

using TablesFunction = Tables();
TUTTI_CPU_LEVEL_FUNCTION(TablesFunction, tables)

namespace {

const Tables& tables() {
  static const Tables chosen = tables_of_level()();
  return chosen;
}

}  // namespace

const BatchNorm& batch_norm() { return tables().batch_norm; }
const Elementwise& elementwise() { return tables().elementwise; }
const Embedding& embedding() { return tables().embedding; }
const Indexing& indexing() { return tables().indexing; }
const LayerNorm& layer_norm() { return tables().layer_norm; }
const Optimizer& optimizer() { return tables().optimizer; }
const Pooling& pooling() { return tables().pooling; }
const Reduce& reduce() { return tables().reduce; }
const Softmax& softmax() { return tables().softmax; }
const WinogradTransforms& winograd_transforms() { return tables().winograd_transforms; }

void reference::matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                       const Tensor& out) {
  tables().reference_matmul(a, b, epilogue, out);
}

bool small_matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out) {
  return tables().small_matmul(a, b, epilogue, out);
}

}  // namespace tutti::kernels::cpu
