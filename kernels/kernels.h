// The table of all kernels that every device provides. Callers pass outputs of the right shape and
// dtype: kernels neither record gradients nor allocate results. Where nothing else is said, tensors
// may have any strides and 16-bit types are computed in float32.
#pragma once

#include "../core/tensor.h"
#include "batch_norm.h"
#include "operations.h"
#include "optimizer.h"
#include "options.h"

namespace tutti::kernels {

/// The elementwise kernels. Inputs broadcast to the output's shape.
struct Elementwise {
  void (*fill)(const Tensor& out, double value);
  /// Computes out = in. Any dtype converts to any other.
  void (*copy)(const Tensor& in, const Tensor& out);
  /// Computes out = op(in). 16-bit types are computed in float32.
  void (*unary)(Unary op, const Tensor& in, const Tensor& out);
  /// Computes out = op(a, b). a and b have one dtype; 16-bit types are computed in float32.
  void (*binary)(Binary op, const Tensor& a, const Tensor& b, const Tensor& out);
  /// Computes out = op(a, b) with a number b, or op(b, a) if `reversed` is set.
  void (*binary_scalar)(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out);
  /// Computes y += alpha * x. x may have another dtype: bfloat16 gradients are added to float32
  /// ones.
  void (*axpy)(double alpha, const Tensor& x, const Tensor& y);
  /// Computes out = condition ? a : b.
  void (*where)(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
};

/// The kernels that read and add elements at indices along one dimension. `index` is int64.
struct Indexing {
  /// Computes out[p] = x[p with index[p] in place of p's dimension `dim`]. `out` and `index` have
  /// one shape, which is at most that of `x` in the other dimensions. An index outside of `x`
  /// throws a ValueError on the CPU before anything is written; a GPU writes NaN there, or 0 as an
  /// integer. The error names `op`.
  void (*gather)(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& out);
  /// Computes out[p with index[p] in place of p's dimension `dim`] += g[p], the gradient of
  /// gather(). `out` is float32 or wider. Elements are added in the order of their positions along
  /// `dim`, so that results are deterministic. Indices may have changed since gather(): one outside
  /// of `out` throws a ValueError that names `op` on the CPU, and is skipped on a GPU.
  void (*scatter_add)(const char* op, const Tensor& g, int dim, const Tensor& index,
                      const Tensor& out);
};

/// Returns `x` under the shape of `index`, with stride 0 along `dim`: each element is the one from
/// which an index counts.
inline Tensor first_elements(const Tensor& x, int dim, const Tensor& index) {
  Strides strides = x.strides();
  strides[dim] = 0;
  return x.alias(index.shape(), strides, x.offset());
}

/// The kernels of layer normalisation. x is seen as rows of D values, each of which is normalised
/// by itself. x, y, dy and dx are row-major without gaps, of one dtype, with rows * D elements.
/// weight, bias and their gradients are float32 or float64 with D elements, or are undefined. mean
/// and rstd are float64, one for each row. Tensors may be empty. The results do not depend on the
/// thread count.
struct LayerNorm {
  /// Computes y = (x - mean) rstd weight + bias with rstd = 1 / sqrt(var + eps), var biased.
  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd);
  /// Computes dx = rstd (g - mean(g) - z mean(g z)) with z = (x - mean) rstd and g = dy weight. dx
  /// may be dy.
  void (*input_grad)(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                     const Tensor& weight, const Tensor& dx);
  /// Writes the sums of dy z and of dy over the rows; either output may be undefined.
  void (*parameter_grad)(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                         const Tensor& weight_grad, const Tensor& bias_grad);
};

/// The reductions along dimensions: sums and extrema.
struct Reduce {
  /// `out` has the rank of `in`, with size 1 in every reduced dimension. Sums are taken in float32
  /// or wider; `out` may be float32 where `in` has 16 bits, and int64 where `in` has bytes. An
  /// empty sum is 0; the caller refuses an empty max or min. The result does not depend on the
  /// thread count.
  void (*reduce)(Reduction op, const Tensor& in, const Tensor& out);
  /// Writes the indices (int64) of the k largest elements along `dim`, the largest first, where k
  /// is the size of `out` in `dim`. NaN is larger than every number; equal elements come in the
  /// order of their indices.
  void (*topk)(const Tensor& in, int dim, const Tensor& out);
};

/// The options of cross-entropy's targets.
struct CrossEntropyRule {
  double label_smoothing = 0;        ///< s: the target distribution is (1-s) one-hot + s/C uniform
  std::int64_t ignore_index = -100;  ///< positions with this target have loss 0 and gradient 0
};

/// The kernels along the class dimension: softmax, log-softmax, and cross-entropy with its
/// gradient. Losses and normalizers are float32 or wider (accumulate_dtype of the logits).
struct Softmax {
  /// Computes softmax along `dim`, or its logarithm if `log` is set.
  void (*forward)(const Tensor& in, int dim, bool log, const Tensor& out);
  /// Computes the gradient from the output `y`: y (g - sum g y), or g - exp(y) sum g where `log`.
  void (*backward)(const Tensor& g, const Tensor& y, int dim, bool log, const Tensor& out);
  /// Writes for every position the loss and the normalizer log sum_c exp(logits_c - max logits),
  /// both of the targets' shape. `logits` has shape (N, C, d...), and `targets` is int64 of shape
  /// (N, d...). On the CPU, a target outside [0, C) that is not ignored throws a ValueError before
  /// anything is written to `losses`; a GPU writes NaN there.
  void (*cross_entropy)(const Tensor& logits, const Tensor& targets, const CrossEntropyRule& rule,
                        const Tensor& losses, const Tensor& normalizers);
  /// Writes the gradient of sum(g * losses); `g` has the targets' shape and the losses' dtype.
  /// Targets may have changed since: one out of range is treated as above, and a GPU writes NaN.
  void (*cross_entropy_grad)(const Tensor& g, const Tensor& logits, const Tensor& targets,
                             const CrossEntropyRule& rule, const Tensor& normalizers,
                             const Tensor& out);
};

/// The kernels of convolution (cross-correlation) over one to three spatial dimensions. Activations
/// (N, C, ...) and weights (O, I/groups, ...) are contiguous or channels_last, and results are
/// written in the layout that the caller allocated. The caller checks the shapes
/// (nn/functional/conv.h does). x has shape (N, I, ...), w (O, I/groups, ...), y (N, O, ...) and
/// bias (O) unless it is undefined. The batch may be empty. With 16-bit activations, w, bias, dw
/// and db have their dtype or float32, and sums are taken in float32. Otherwise all tensors have
/// one dtype.
struct Convolution {
  void (*forward)(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions&,
                  const Tensor& y);
  void (*backward_input)(const Tensor& dy, const Tensor& w, const ConvOptions&, const Tensor& dx);
  /// `db` may be undefined.
  void (*backward_weight)(const Tensor& x, const Tensor& dy, const ConvOptions&, const Tensor& dw,
                          const Tensor& db);
  /// From now on `forward` may keep copies of `w` in layouts that it prefers, beside the storage of
  /// w. It makes them anew after a change in place that bumps the version of the storage; other
  /// changes must not happen. Nothing else may use the storage during this call.
  void (*keep_packed)(const Tensor& w);
};

/// The kernels of pooling over one to three spatial dimensions of (N, C, ...): a window is reduced
/// to its maximum or its average. Results are written in the layout that the caller allocated;
/// channels_last is the fast one. The caller checks the shapes (nn/functional/pooling.h does).
struct Pooling {
  /// Writes to `index` (of y's shape, pool_index_dtype) the row-major position of the first largest
  /// element in its window. `index` may be undefined where no gradient is needed. NaN counts as
  /// larger than every number.
  void (*max_forward)(const Tensor& x, const PoolOptions&, const Tensor& y, const Tensor& index);
  void (*max_backward)(const Tensor& dy, const Tensor& index, const PoolOptions&, const Tensor& dx);
  /// Without a kernel in the options, pooling is adaptive: window o of a dimension with `in`
  /// elements and `out` windows reaches from floor(o in / out) to ceil((o + 1) in / out).
  void (*average_forward)(const Tensor& x, const PoolOptions&, const Tensor& y);
  void (*average_backward)(const Tensor& dy, const PoolOptions&, const Tensor& dx);
};

/// The kernels of interpolation over one to three spatial dimensions of (N, C, ...), with PyTorch's
/// positions (interpolation_positions.h). Both tensors are contiguous or both channels_last, and
/// none but the batch is empty. Every element of a result is computed once, from all elements that
/// it depends on, so that results are deterministic.
struct Interpolation {
  void (*forward)(const Tensor& x, const InterpolationOptions&, const Tensor& y);
  void (*backward)(const Tensor& dy, const InterpolationOptions&, const Tensor& dx);
};

/// All kernels of one device. Each family is defined in kernels/cpu/FAMILY.cpp and
/// kernels/cuda/FAMILY.cu.
struct Kernels {
  BatchNorm batch_norm;
  Convolution convolution;
  Elementwise elementwise;
  Indexing indexing;
  Interpolation interpolation;
  LayerNorm layer_norm;
  /// Computes out (..., m, n) = a (..., m, k) b (..., k, n) + bias (n). The bias is dense, or
  /// undefined for none. The others have one rank, at least 2, and any strides; batch dimensions of
  /// size 1 in a or b broadcast. With a 16-bit a the others have its dtype or float32, and sums are
  /// taken in float32; otherwise all have one dtype. With k = 0 the result is the bias, or zeros.
  void (*matmul)(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);
  Optimizer optimizer;
  Pooling pooling;
  Reduce reduce;
  Softmax softmax;
};

namespace cpu {
/// Returns the kernels of the level of this processor (core/cpu_level.h).
const Kernels& table();
}  // namespace cpu
namespace cuda {
/// Throws a DeviceError where the library is built without CUDA.
const Kernels& table();
}  // namespace cuda

/// Returns the kernels of `device`.
inline const Kernels& on(Device device) { return device.is_cpu() ? cpu::table() : cuda::table(); }

}  // namespace tutti::kernels
