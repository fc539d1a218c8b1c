// Joins the CPU's kernels of one level of processors, and chooses the level once.
#include "../kernels.h"

#include "../../core/cpu_level.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu {

// Each is defined in the source of its family. oneDNN chooses its own code for the processor, so
// convolutions and matrix products are compiled once.
extern const Convolution convolution;
void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);

namespace TUTTI_CPU_LEVEL {

extern const BatchNorm batch_norm;
extern const Elementwise elementwise;
extern const Indexing indexing;
extern const Interpolation interpolation;
extern const LayerNorm layer_norm;
extern const Optimizer optimizer;
extern const Pooling pooling;
extern const Reduce reduce;
extern const Softmax softmax;

const Kernels& level_table() {
  static const Kernels all{batch_norm,    convolution, elementwise, indexing,
                           interpolation, layer_norm,  matmul,      optimizer,
                           pooling,       reduce,      softmax};
  return all;
}

}  // namespace TUTTI_CPU_LEVEL

#if defined(TUTTI_CPU_BASELINE)

using TableFunction = const Kernels&();
TUTTI_CPU_LEVEL_FUNCTION(TableFunction, level_table)

const Kernels& table() { return level_table_of_level()(); }

#endif

}  // namespace tutti::kernels::cpu

#include "../../core/end_cpu_level.h"
