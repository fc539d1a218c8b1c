// Replaces the CUDA kernels where the library is built without them: asking for a table throws
// DeviceError.
#include "../../core/cuda/runtime.h"
#include "../batch_norm.h"
#include "../convolution.h"
#include "../elementwise.h"
#include "../embedding.h"
#include "../indexing.h"
#include "../layer_norm.h"
#include "../matmul.h"
#include "../optimizer.h"
#include "../pooling.h"
#include "../reduce.h"
#include "../softmax.h"

namespace tutti::kernels::cuda {
namespace {

[[noreturn]] void refuse() { fail<DeviceError>("cuda: {}", tutti::cuda::why_unavailable()); }

}  // namespace

const BatchNorm& batch_norm() { refuse(); }
const Convolution& convolution() { refuse(); }
const Elementwise& elementwise() { refuse(); }
const Embedding& embedding() { refuse(); }
const Indexing& indexing() { refuse(); }
const Matmul& matmul() { refuse(); }
const Optimizer& optimizer() { refuse(); }
const Pooling& pooling() { refuse(); }
const LayerNorm& layer_norm() { refuse(); }
const Reduce& reduce() { refuse(); }
const Softmax& softmax() { refuse(); }

}  // namespace tutti::kernels::cuda
