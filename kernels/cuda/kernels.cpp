// Joins the CUDA kernels.
#include "../kernels.h"

namespace tutti::kernels::cuda {

// Each is defined in the source of its family.
extern const BatchNorm batch_norm;
extern const Convolution convolution;
extern const Elementwise elementwise;
extern const Indexing indexing;
extern const Interpolation interpolation;
extern const LayerNorm layer_norm;
void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);
extern const Optimizer optimizer;
extern const Pooling pooling;
extern const Reduce reduce;
extern const Softmax softmax;

const Kernels& table() {
  static const Kernels all{batch_norm,    convolution, elementwise, indexing,
                           interpolation, layer_norm,  matmul,      optimizer,
                           pooling,       reduce,      softmax};
  return all;
}

}  // namespace tutti::kernels::cuda
