// This file computes matrix products on CUDA devices through cuBLASLt. cuBLASLt expects
// column-major matrices, so the row-major product out = a b is computed as out^T = b^T a^T in the
// same memory (matmul_layout.h). The algorithm that its heuristics choose for a problem is cached
// for each thread and device. Sums are computed in float32 (float64 for float64), also between the
// parts of a split sum.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/cuda/settings.h"
#include "../../core/cuda/stream.h"
#include "matmul_layout.h"
#include "thread_state.h"

#include <cublasLt.h>

#include <cstdint>
#include <limits>

namespace tutti::kernels::cuda {
namespace {

using tutti::cuda::current_stream;
using tutti::cuda::DeviceScope;
using tutti::cuda::settings;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail<DeviceError>("{} failed: {}", call, cublasLtGetStatusString(status));
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* t) const {
    destroy(t);
  }
};
template <class T, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<destroy>>;
using OperationDescriptor = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LayoutDescriptor = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using PreferenceDescriptor = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case float32: return CUDA_R_32F;
    case float64: return CUDA_R_64F;
    case float16: return CUDA_R_16F;
    case bfloat16: return CUDA_R_16BF;
    default:
      fail<DTypeError>(
          "matmul: cannot compute in {} on this device (expected one of float32, float64, "
          "bfloat16, float16); convert with .to(dtype)",
          to_string(dtype));
  }
}

// One product or a batch of them, as cuBLASLt sees it: `first` is b^T, `second` is a^T, `out` is
// out^T.
struct MatmulProblem {
  DType inputs, result;
  MatrixLayout first, second, out;
  BatchDim batch;
  std::uint32_t first_alignment, second_alignment, out_alignment;  // in bytes
  bool has_bias, allow_tf32;

  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> key{static_cast<std::int64_t>(inputs),
                                  static_cast<std::int64_t>(result),
                                  batch.count,
                                  batch.a,
                                  batch.b,
                                  batch.out,
                                  first_alignment,
                                  second_alignment,
                                  out_alignment,
                                  has_bias,
                                  allow_tf32};
    for (const MatrixLayout& m : {first, second, out})
      key.insert(key.end(), {m.rows, m.columns, m.leading, m.transposed});
    return key;
  }
};

// The algorithm with which cuBLASLt runs a problem.
struct MatmulAlgorithm {
  OperationDescriptor operation;
  LayoutDescriptor first, second, out;
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace = 0;
  // Whether the algorithm also adds the bias. If not, the bias is written to `out` first, and the
  // product is added to it.
  bool adds_bias = false;
};

// Returns a scale factor of 0 or 1 in the type that cuBLASLt computes in.
const void* scale_factor(DType inputs, bool is_one) {
  static constexpr double wide[] = {0, 1};
  static constexpr float narrow[] = {0, 1};
  return inputs == float64 ? static_cast<const void*>(&wide[is_one]) : &narrow[is_one];
}

struct CublasLt {
  explicit CublasLt(int) { check(cublasLtCreate(&handle), "cublasLtCreate"); }
  cublasLtHandle_t handle = nullptr;
  std::map<std::vector<std::int64_t>, MatmulAlgorithm> algorithms;
};

template <class T>
void set(const OperationDescriptor& operation, cublasLtMatmulDescAttributes_t name, T value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), name, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const LayoutDescriptor& layout, cublasLtMatrixLayoutAttribute_t name, T value) {
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), name, &value, sizeof value),
        "cublasLtMatrixLayoutSetAttribute");
}
template <class T>
void set(const PreferenceDescriptor& preference, cublasLtMatmulPreferenceAttributes_t name,
         T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

LayoutDescriptor layout_of(const MatrixLayout& m, DType dtype, std::int64_t count,
                           std::int64_t step) {
  cublasLtMatrixLayout_t raw = nullptr;
  check(cublasLtMatrixLayoutCreate(&raw, data_type(dtype), static_cast<std::uint64_t>(m.rows),
                                   static_cast<std::uint64_t>(m.columns), m.leading),
        "cublasLtMatrixLayoutCreate");
  LayoutDescriptor result(raw);
  if (count > 1) {
    if (count > std::numeric_limits<std::int32_t>::max())
      fail<ShapeError>("matmul: expected fewer than 2^31 products in a batch on a GPU, got {}",
                       count);
    set(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
    set(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  }
  return result;
}

// Finds the algorithm and its workspace size; returns false if cuBLASLt has no algorithm.
bool find_algorithm(cublasLtHandle_t handle, const MatmulProblem& p, MatmulAlgorithm& chosen) {
  cublasLtMatmulPreference_t raw = nullptr;
  check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  const PreferenceDescriptor preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{32} << 20);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.first_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.second_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.out_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.out_alignment);
  if (size_of(p.result) == 2)  // The parts of a split sum must not be rounded to 16 bits.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, chosen.operation.get(), chosen.first.get(), chosen.second.get(), chosen.out.get(),
      chosen.out.get(), preference.get(), 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return false;
  chosen.algorithm = result.algo;
  chosen.workspace = result.workspaceSize;
  return true;
}

MatmulAlgorithm make_algorithm(cublasLtHandle_t handle, const MatmulProblem& p, const void* bias) {
  MatmulAlgorithm chosen;
  const bool wide = p.inputs == float64, tf32 = p.inputs == float32 && p.allow_tf32;
  cublasLtMatmulDesc_t raw = nullptr;
  const cublasComputeType_t narrow = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&raw, wide ? CUBLAS_COMPUTE_64F : narrow,
                                 wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  chosen.operation.reset(raw);
  const auto operation_of = [](bool transposed) {
    return static_cast<std::int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  set(chosen.operation, CUBLASLT_MATMUL_DESC_TRANSA, operation_of(p.first.transposed));
  set(chosen.operation, CUBLASLT_MATMUL_DESC_TRANSB, operation_of(p.second.transposed));
  chosen.first = layout_of(p.first, p.inputs, p.batch.count, p.batch.b);
  chosen.second = layout_of(p.second, p.inputs, p.batch.count, p.batch.a);
  chosen.out = layout_of(p.out, p.result, p.batch.count, p.batch.out);
  const auto set_epilogue = [&](cublasLtEpilogue_t epilogue) {
    set(chosen.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
  };
  if (bias && !wide) {  // float64 has no epilogue.
    set_epilogue(CUBLASLT_EPILOGUE_BIAS);
    set(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<std::int32_t>(data_type(p.result)));
    set(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    chosen.adds_bias = true;
    if (find_algorithm(handle, p, chosen)) return chosen;
    set_epilogue(CUBLASLT_EPILOGUE_DEFAULT);
    chosen.adds_bias = false;
  }
  if (!find_algorithm(handle, p, chosen)) fail<DeviceError>("cuBLASLt has no algorithm for this");
  return chosen;
}

std::uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, bits & (~bits + 1)));
}

Tensor broadcast(const Tensor& vector, const Tensor& to) {
  Strides strides = Dims::filled(to.rank(), 0);
  strides[to.rank() - 1] = vector.strides()[0];
  return vector.alias(to.shape(), strides, vector.offset());
}

Tensor transposed(const Tensor& t) {
  Shape shape = t.shape();
  Strides strides = t.strides();
  std::swap(shape[t.rank() - 2], shape[t.rank() - 1]);
  std::swap(strides[t.rank() - 2], strides[t.rank() - 1]);
  return t.alias(shape, strides, t.offset());
}

Tensor contiguous(const Tensor& t, DType dtype) {
  const Tensor copy = empty(t.shape(), {dtype, t.device()});
  table().elementwise.copy(t, copy);
  return copy;
}

// Computes one product or one strided batch of them: a (count, m, k), b (count, k, n), out (count,
// m, n), with strides that MatrixLayout can express and stride 0 where one matrix serves the whole
// batch. A bias has out's dtype.
void run(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  const Device device = out.device();
  const MatmulProblem p{.inputs = a.dtype(),
                        .result = out.dtype(),
                        .first = *transposed_layout(b),
                        .second = *transposed_layout(a),
                        .out = *transposed_layout(out),
                        .batch = {out.shape()[0], a.strides()[0], b.strides()[0], out.strides()[0]},
                        .first_alignment = alignment(b.raw()),
                        .second_alignment = alignment(a.raw()),
                        .out_alignment = alignment(out.raw()),
                        .has_bias = bias.defined(),
                        .allow_tf32 = settings().allow_tf32};
  const void* added = bias.defined() ? bias.raw() : nullptr;
  CublasLt& cublas = thread_state<CublasLt>(device.index());
  auto known = cublas.algorithms.find(p.key());
  if (known == cublas.algorithms.end())
    known = cublas.algorithms.emplace(p.key(), make_algorithm(cublas.handle, p, added)).first;
  const MatmulAlgorithm& chosen = known->second;
  const bool adds_to_bias = added && !chosen.adds_bias;
  if (adds_to_bias) table().elementwise.copy(broadcast(bias, out), out);
  else if (added) set(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, added);
  const Storage workspace(chosen.workspace, device);
  check(cublasLtMatmul(cublas.handle, chosen.operation.get(), scale_factor(p.inputs, true), b.raw(),
                       chosen.first.get(), a.raw(), chosen.second.get(),
                       scale_factor(p.inputs, adds_to_bias), out.raw(), chosen.out.get(), out.raw(),
                       chosen.out.get(), &chosen.algorithm, workspace.data(), chosen.workspace,
                       current_stream(device.index()).get()),
        "cublasLtMatmul");
}

// Returns `t`, or a copy of it if cuBLASLt does not support its strides or its dtype differs.
Tensor readable(const Tensor& t, DType dtype) {
  return t.dtype() == dtype && transposed_layout(t) ? t : contiguous(t, dtype);
}

// Returns a view (count, rows, columns) of the matrices along the last batch dimension, at the
// row-major position `index` of the other batch dimensions.
Tensor batch_at(const Tensor& t, const std::vector<BatchDim>& dims, std::int64_t index,
                std::int64_t BatchDim::*step) {
  const BatchDim inner = dims.empty() ? BatchDim{} : dims.back();
  std::int64_t offset = t.offset();
  for (std::size_t d = dims.empty() ? 0 : dims.size() - 1; d-- > 0; index /= dims[d].count)
    offset += index % dims[d].count * dims[d].*step;
  const int rank = t.rank();
  return t.alias({inner.count, t.size(-2), t.size(-1)},
                 {inner.*step, t.strides()[rank - 2], t.strides()[rank - 1]}, offset);
}

}  // namespace

void matmul(const Tensor& a_given, const Tensor& b_given, const Tensor& bias, const Tensor& out) {
  const DType dtype = a_given.dtype();
  data_type(dtype);  // Throws if the dtype does not support products.
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index());
  if (a_given.size(-1) == 0) {
    if (!bias.defined()) return table().elementwise.fill(out, 0);
    return table().elementwise.copy(broadcast(bias, out), out);
  }
  const auto layout = transposed_layout(out);
  const bool direct = layout &&
                      (out.dtype() == dtype || (out.dtype() == float32 && size_of(dtype) == 2));
  if (!direct || layout->transposed) {
    // A column-major output is the row-major output of the transposed problem.
    if (direct && !bias.defined())
      return matmul(transposed(b_given), transposed(a_given), bias, transposed(out));
    const Tensor rows = empty(out.shape(), {dtype, out.device()});
    matmul(a_given, b_given, bias, rows);
    return table().elementwise.copy(rows, out);
  }
  const Tensor a = readable(a_given, dtype), b = readable(b_given, dtype);
  const bool usable = !bias.defined() || (bias.dtype() == out.dtype() && bias.is_contiguous() &&
                                          alignment(bias.raw()) >= 16);
  const Tensor joined = usable ? bias : contiguous(bias, out.dtype());
  const std::vector<BatchDim> dims = batch_dims(a, b, out);
  std::int64_t batches = 1;
  for (std::size_t d = 0; d + 1 < dims.size(); ++d) batches *= dims[d].count;
  try {
    for (std::int64_t i = 0; i < batches; ++i)
      run(batch_at(a, dims, i, &BatchDim::a), batch_at(b, dims, i, &BatchDim::b), joined,
          batch_at(out, dims, i, &BatchDim::out));
  } catch (const DeviceError& error) {
    fail<DeviceError>("matmul of {} {} and {} {}: {}", to_string(a.dtype()), to_string(a.shape()),
                      to_string(b.dtype()), to_string(b.shape()), error.what());
  }
}

}  // namespace tutti::kernels::cuda
