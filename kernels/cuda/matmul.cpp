// Matrix products on CUDA devices, through cuBLASLt. Row-major out = a b is computed as out^T = b^T
// a^T, which is what cuBLASLt sees in the same memory (matmul_layout.h). What its heuristics choose
// for a shape is kept, for each thread and device. Sums are taken in float32 (float64 for float64),
// also between parts of a long sum.
#include "../matmul.h"

#include "../../core/create.h"
#include "../../core/cuda/settings.h"
#include "../../core/cuda/stream.h"
#include "../elementwise.h"
#include "matmul_layout.h"
#include "per_thread.h"

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
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

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

// One product, or a batch of them, as cuBLASLt is told it: `first` is b^T, `second` a^T, `out`
// out^T.
struct Problem {
  DType operands, result;
  MatrixLayout first, second, out;
  BatchDim batch;
  std::uint32_t first_alignment, second_alignment, out_alignment;  // in bytes
  cublasLtEpilogue_t epilogue;
  bool allow_tf32;

  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> key{static_cast<std::int64_t>(operands),
                                  static_cast<std::int64_t>(result),
                                  batch.count,
                                  batch.a,
                                  batch.b,
                                  batch.out,
                                  first_alignment,
                                  second_alignment,
                                  out_alignment,
                                  epilogue,
                                  allow_tf32};
    for (const MatrixLayout& m : {first, second, out})
      key.insert(key.end(), {m.rows, m.columns, m.leading, m.transposed});
    return key;
  }
};

struct Plan {
  Operation operation;
  Layout first, second, out;
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace = 0;
  bool joins = false;  // the epilogue; else the bias is in `out` before, and added to, and the
                       // activation comes after
};

// A factor in the type that cuBLASLt computes in.
class Scale {
 public:
  Scale(DType operands, double value)
      : wide_(operands == float64), double_(value), float_(static_cast<float>(value)) {}
  const void* get() const { return wide_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  bool wide_;
  double double_;
  float float_;
};

struct Library {
  explicit Library(int) { check(cublasLtCreate(&handle), "cublasLtCreate"); }
  cublasLtHandle_t handle = nullptr;
  std::map<std::vector<std::int64_t>, Plan> plans;
};

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t name, T value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), name, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t name, T value) {
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), name, &value, sizeof value),
        "cublasLtMatrixLayoutSetAttribute");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

Layout layout(const MatrixLayout& m, DType dtype, std::int64_t count, std::int64_t step) {
  cublasLtMatrixLayout_t raw = nullptr;
  check(cublasLtMatrixLayoutCreate(&raw, data_type(dtype), static_cast<std::uint64_t>(m.rows),
                                   static_cast<std::uint64_t>(m.columns), m.leading),
        "cublasLtMatrixLayoutCreate");
  Layout result(raw);
  if (count > 1) {
    if (count > std::numeric_limits<std::int32_t>::max())
      fail<ShapeError>("matmul: expected fewer than 2^31 products in a batch on a GPU, got {}",
                       count);
    set(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
    set(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  }
  return result;
}

// False where cuBLASLt has none.
bool find_algorithm(cublasLtHandle_t handle, const Problem& p, Plan& plan) {
  cublasLtMatmulPreference_t raw = nullptr;
  check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  const Preference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{32} << 20);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.first_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.second_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.out_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.out_alignment);
  if (size_of(p.result) == 2)  // parts of a long sum must not be rounded to 16 bits in between
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.out.get(),
      plan.out.get(), preference.get(), 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return false;
  plan.algorithm = result.algo;
  plan.workspace = result.workspaceSize;
  return true;
}

cublasLtEpilogue_t epilogue_of(const Epilogue& e) {
  if (e.activation == Activation::relu)
    return e.bias.defined() ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  return e.bias.defined() ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

Plan make_plan(cublasLtHandle_t handle, const Problem& p, const void* bias) {
  Plan plan;
  const bool wide = p.operands == float64, tf32 = p.operands == float32 && p.allow_tf32;
  cublasLtMatmulDesc_t raw = nullptr;
  const cublasComputeType_t narrow = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&raw, wide ? CUBLAS_COMPUTE_64F : narrow,
                                 wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  plan.operation.reset(raw);
  const auto turn = [](bool transposed) {
    return static_cast<std::int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, turn(p.first.transposed));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, turn(p.second.transposed));
  plan.first = layout(p.first, p.operands, p.batch.count, p.batch.b);
  plan.second = layout(p.second, p.operands, p.batch.count, p.batch.a);
  plan.out = layout(p.out, p.result, p.batch.count, p.batch.out);
  const auto join = [&](cublasLtEpilogue_t epilogue) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
  };
  if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !wide) {  // float64 has none
    join(p.epilogue);
    if (bias) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
          static_cast<std::int32_t>(data_type(p.result)));
      set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    plan.joins = true;
    if (find_algorithm(handle, p, plan)) return plan;
    join(CUBLASLT_EPILOGUE_DEFAULT);
    plan.joins = false;
  }
  if (!find_algorithm(handle, p, plan)) fail<DeviceError>("cuBLASLt has no algorithm for this");
  return plan;
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
  elementwise().copy(t, copy);
  return copy;
}

void activate(Activation activation, const Tensor& out) {
  if (activation == Activation::relu) elementwise().unary(Unary::relu, out, out);
}

// One product or one strided batch of them: a (count, m, k), b (count, k, n), out (count, m, n),
// with strides that layouts can say; an operand that serves the whole batch has stride 0 there. A
// bias has out's dtype.
void run(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out) {
  const Device device = out.device();
  const Tensor& bias = epilogue.bias;
  const Problem p{.operands = a.dtype(),
                  .result = out.dtype(),
                  .first = *transposed_layout(b),
                  .second = *transposed_layout(a),
                  .out = *transposed_layout(out),
                  .batch = {out.shape()[0], a.strides()[0], b.strides()[0], out.strides()[0]},
                  .first_alignment = alignment(b.raw()),
                  .second_alignment = alignment(a.raw()),
                  .out_alignment = alignment(out.raw()),
                  .epilogue = epilogue_of(epilogue),
                  .allow_tf32 = settings().allow_tf32};
  const void* added = bias.defined() ? bias.raw() : nullptr;
  Library& library = per_thread<Library>(device.index());
  auto known = library.plans.find(p.key());
  if (known == library.plans.end())
    known = library.plans.emplace(p.key(), make_plan(library.handle, p, added)).first;
  const Plan& plan = known->second;
  const bool added_to = added && !plan.joins;
  if (added_to) elementwise().copy(broadcast(bias, out), out);
  else if (added) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, added);
  const Scale one(p.operands, 1), keep(p.operands, added_to ? 1 : 0);
  const Storage workspace(plan.workspace, device);
  check(cublasLtMatmul(library.handle, plan.operation.get(), one.get(), b.raw(), plan.first.get(),
                       a.raw(), plan.second.get(), keep.get(), out.raw(), plan.out.get(), out.raw(),
                       plan.out.get(), &plan.algorithm, workspace.data(), plan.workspace,
                       current_stream(device.index()).get()),
        "cublasLtMatmul");
  if (!plan.joins) activate(epilogue.activation, out);
}

// `t` as an operand: itself, or a copy where its dtype or its strides cannot be.
Tensor operand(const Tensor& t, DType dtype) {
  return t.dtype() == dtype && transposed_layout(t) ? t : contiguous(t, dtype);
}

// Element `index` (row-major) of the batch dimensions that are looped over, as (count, rows,
// columns) of the last one.
Tensor chunk(const Tensor& t, const std::vector<BatchDim>& dims, std::int64_t index,
             std::int64_t BatchDim::*step) {
  const BatchDim inner = dims.empty() ? BatchDim{} : dims.back();
  std::int64_t offset = t.offset();
  for (std::size_t d = dims.empty() ? 0 : dims.size() - 1; d-- > 0; index /= dims[d].count)
    offset += index % dims[d].count * dims[d].*step;
  const int rank = t.rank();
  return t.alias({inner.count, t.size(-2), t.size(-1)},
                 {inner.*step, t.strides()[rank - 2], t.strides()[rank - 1]}, offset);
}

void multiply(const Tensor& a_given, const Tensor& b_given, const Epilogue& epilogue,
              const Tensor& out) {
  const DType operands = a_given.dtype();
  data_type(operands);  // throws for one that has no products
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index());
  if (a_given.size(-1) == 0) {
    if (epilogue.bias.defined()) elementwise().copy(broadcast(epilogue.bias, out), out);
    else elementwise().fill(out, 0);
    return activate(epilogue.activation, out);
  }
  const auto layout = transposed_layout(out);
  const bool direct =
      layout && (out.dtype() == operands || (out.dtype() == float32 && size_of(operands) == 2));
  if (!direct || layout->transposed) {
    if (direct && !epilogue.bias.defined())  // by columns: the transposed problem is by rows
      return multiply(transposed(b_given), transposed(a_given), epilogue, transposed(out));
    const Tensor rows = empty(out.shape(), {operands, out.device()});
    multiply(a_given, b_given, epilogue, rows);
    return elementwise().copy(rows, out);
  }
  const Tensor a = operand(a_given, operands), b = operand(b_given, operands);
  const Tensor& bias = epilogue.bias;
  const bool as_it_is = !bias.defined() || (bias.dtype() == out.dtype() && bias.is_contiguous() &&
                                            alignment(bias.raw()) >= 16);
  const Epilogue joined{as_it_is ? bias : contiguous(bias, out.dtype()), epilogue.activation};
  const std::vector<BatchDim> dims = batch_dims(a, b, out);
  std::int64_t chunks = 1;
  for (std::size_t d = 0; d + 1 < dims.size(); ++d) chunks *= dims[d].count;
  try {
    for (std::int64_t i = 0; i < chunks; ++i)
      run(chunk(a, dims, i, &BatchDim::a), chunk(b, dims, i, &BatchDim::b), joined,
          chunk(out, dims, i, &BatchDim::out));
  } catch (const DeviceError& error) {
    fail<DeviceError>("matmul of {} {} and {} {}: {}", to_string(a.dtype()), to_string(a.shape()),
                      to_string(b.dtype()), to_string(b.shape()), error.what());
  }
}

}  // namespace

const Matmul& matmul() {
  static constexpr Matmul table{multiply};
  return table;
}

}  // namespace tutti::kernels::cuda
