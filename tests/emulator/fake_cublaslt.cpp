// Defines the functions of cuBLASLt that kernels/cuda/matmul.cpp calls, so that this file runs in
// the emulator unchanged: column-major matrices, strided batches, bias and relu, summed in float64.
// They check what cuBLASLt documents (sizes of attributes, leading dimensions, dtypes, no epilogue
// in float64), and that an algorithm is used for the problem, the alignments and the workspace that
// it was made for. They overwrite the workspace, and refuse some problems with an epilogue, chosen
// by hash. They do not imitate cuBLASLt's choices, rounding and speed, or its relu of NaN.
#include "census.h"
#include "emulator.h"

#include <tutti/core/dtype.h>

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

using namespace tutti;

namespace {

// A descriptor of any kind: the bytes of its attributes by number.
struct Descriptor {
  std::map<int, std::string> attributes;

  void set(int name, const void* value, std::size_t bytes) {
    attributes[name].assign(static_cast<const char*>(value), bytes);
  }
  template <class T>
  T get(int name, T otherwise) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return otherwise;
    if (found->second.size() != sizeof(T))
      emulator::fatal(fmt::format("cuBLASLt: attribute {} has {} bytes, not {}", name, sizeof(T),
                                  found->second.size()));
    std::memcpy(&otherwise, found->second.data(), sizeof(T));
    return otherwise;
  }
};

template <class Handle>
const Descriptor& of(Handle handle) {
  return *reinterpret_cast<const Descriptor*>(handle);
}
template <class Handle>
cublasStatus_t make(Handle* handle, Descriptor descriptor = {}) {
  *handle = reinterpret_cast<Handle>(new Descriptor(std::move(descriptor)));
  return CUBLAS_STATUS_SUCCESS;
}
template <class Handle>
cublasStatus_t destroy(Handle handle) {
  delete reinterpret_cast<Descriptor*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Handle>
cublasStatus_t assign(Handle handle, int name, const void* value, std::size_t bytes) {
  if (!value) return CUBLAS_STATUS_INVALID_VALUE;
  reinterpret_cast<Descriptor*>(handle)->set(name, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

struct Matrix {
  cudaDataType type;
  std::int64_t rows, columns, leading, count, step;

  explicit Matrix(const Descriptor& d)
      : type(static_cast<cudaDataType>(d.get<std::uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE, 0))),
        rows(static_cast<std::int64_t>(d.get<std::uint64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS, 0))),
        columns(static_cast<std::int64_t>(d.get<std::uint64_t>(CUBLASLT_MATRIX_LAYOUT_COLS, 0))),
        leading(d.get<std::int64_t>(CUBLASLT_MATRIX_LAYOUT_LD, 0)),
        count(d.get<std::int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1)),
        step(d.get<std::int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0)) {}

  std::size_t element() const { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
  std::size_t bytes() const {
    return static_cast<std::size_t>((count - 1) * step + (columns - 1) * leading + rows) *
           element();
  }
  bool right() const {
    return rows > 0 && columns > 0 && leading >= rows && count > 0 && step >= 0;
  }
};

template <class T>
double load_as(const void* data, std::int64_t index) {
  return static_cast<double>(static_cast<const T*>(data)[index]);
}
double load(cudaDataType type, const void* data, std::int64_t index) {
  switch (type) {
    case CUDA_R_64F: return load_as<double>(data, index);
    case CUDA_R_32F: return load_as<float>(data, index);
    case CUDA_R_16F: return load_as<Float16>(data, index);
    default: return load_as<BFloat16>(data, index);
  }
}
void store(cudaDataType type, void* data, std::int64_t index, double value) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(data)[index] = value; break;
    case CUDA_R_32F: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case CUDA_R_16F: static_cast<Float16*>(data)[index] = static_cast<float>(value); break;
    default: static_cast<BFloat16*>(data)[index] = static_cast<float>(value);
  }
}

// Returns op(x) of one batch, row-major. If `tf32` is set, its values are truncated to TF32.
std::vector<double> gather(const Matrix& x, const void* data, std::int64_t batch, bool transposed,
                           bool tf32) {
  const std::int64_t rows = transposed ? x.columns : x.rows,
                     columns = transposed ? x.rows : x.columns;
  std::vector<double> result;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const double value =
          load(x.type, data, batch * x.step + (transposed ? j + i * x.leading : i + j * x.leading));
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      result.push_back(tf32 ? std::bit_cast<float>(bits & 0xffffe000u) : value);
    }
  return result;
}

// All arguments of a product except its pointers and factors.
struct Problem {
  bool supported, right;
  Matrix a, b, c, d;
  cublasComputeType_t compute;
  bool a_transposed, b_transposed;
  std::uint32_t epilogue;
  const void* bias;
  std::size_t hash;

  Problem(const Descriptor& operation, const Descriptor& a_given, const Descriptor& b_given,
          const Descriptor& c_given, const Descriptor& d_given)
      : a(a_given),
        b(b_given),
        c(c_given),
        d(d_given),
        compute(static_cast<cublasComputeType_t>(
            operation.get<std::int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, -1))),
        a_transposed(operation.get<std::int32_t>(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) ==
                     CUBLAS_OP_T),
        b_transposed(operation.get<std::int32_t>(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) ==
                     CUBLAS_OP_T),
        epilogue(
            operation.get<std::uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT)),
        bias(operation.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr)) {
    std::string all;
    for (const Descriptor* descriptor : {&operation, &a_given, &b_given, &c_given, &d_given})
      for (const auto& [name, value] : descriptor->attributes)
        if (descriptor != &operation || name != CUBLASLT_MATMUL_DESC_BIAS_POINTER)
          all += fmt::format("{}:{};", name, value);
    hash = std::hash<std::string>()(all);
    const bool wide = a.type == CUDA_R_64F, narrow = a.type == CUDA_R_16F || a.type == CUDA_R_16BF;
    const std::int32_t scale = operation.get<std::int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE, -1);
    supported = a.type == b.type && c.type == d.type &&
                (d.type == a.type || (narrow && d.type == CUDA_R_32F)) &&
                wide == (compute == CUBLAS_COMPUTE_64F) &&
                scale == (wide ? CUDA_R_64F : CUDA_R_32F) &&
                !(wide && epilogue != CUBLASLT_EPILOGUE_DEFAULT);
    // cuBLASLt reads a bias in D's type.
    const std::int32_t bias_type =
        operation.get<std::int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1);
    right = a.right() && b.right() && c.right() && d.right() &&
            (a_transposed ? a.columns : a.rows) == d.rows &&
            (b_transposed ? b.rows : b.columns) == d.columns &&
            inner() == (b_transposed ? b.columns : b.rows) && a.count == d.count &&
            b.count == d.count && !(d.count > 1 && d.step == 0) &&
            !(adds_bias() && (!bias || bias_type != d.type));
  }
  std::int64_t inner() const { return a_transposed ? a.rows : a.columns; }
  bool adds_bias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS; }
};

void multiply(const Problem& p, double alpha, const void* a, const void* b, double beta,
              const void* c, void* d) {
  const std::int64_t m = p.d.rows, n = p.d.columns, k = p.inner();
  const bool tf32 = p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  for (std::int64_t batch = 0; batch < p.d.count; ++batch) {
    const std::vector<double> left = gather(p.a, a, batch, p.a_transposed, tf32),
                              right = gather(
                                  p.b, b, batch, !p.b_transposed,
                                  tf32);  // transposed, so that its rows are columns of op(b)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t i = 0; i < m; ++i) {
        double z = 0;
        for (std::int64_t l = 0; l < k; ++l)
          z += left[static_cast<std::size_t>(i * k + l)] *
               right[static_cast<std::size_t>(j * k + l)];
        z *= alpha;
        if (beta != 0) z += beta * load(p.c.type, c, batch * p.c.step + i + j * p.c.leading);
        if (p.adds_bias()) z += load(p.d.type, p.bias, i);
        store(p.d.type, d, batch * p.d.step + i + j * p.d.leading, z);
      }
  }
}

// The content of an algorithm, which is opaque to its user.
struct Algorithm {
  std::uint64_t problem, a, b, c, d, workspace;  // a to d are alignments, workspace is bytes
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

bool aligned(const void* address, std::uint64_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0;
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not supported"
                                               : "an invalid value";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make(handle); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  Descriptor d;
  const auto type_number = static_cast<std::uint32_t>(type);
  d.set(CUBLASLT_MATRIX_LAYOUT_TYPE, &type_number, sizeof type_number);
  d.set(CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
  d.set(CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
  d.set(CUBLASLT_MATRIX_LAYOUT_LD, &leading, sizeof leading);
  return make(layout, std::move(d));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, std::size_t bytes) {
  return assign(layout, name, value, bytes);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  Descriptor d;
  const std::int32_t compute_number = compute, scale_number = scale;
  d.set(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute_number, sizeof compute_number);
  d.set(CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale_number, sizeof scale_number);
  return make(operation, std::move(d));
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return destroy(operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, std::size_t bytes) {
  return assign(operation, name, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, std::size_t bytes) {
  return assign(preference, name, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  const Problem p(of(operation), of(a), of(b), of(c), of(d));
  *count = 0;
  if (!p.right || asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!p.supported) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.hash % 4 == 0)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Descriptor& wish = of(preference);
  const auto alignment = [&](int name) { return wish.get<std::uint32_t>(name, 256); };
  const auto room = wish.get<std::uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  const Algorithm algorithm{p.hash,
                            alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
                            alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
                            alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
                            alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES),
                            std::min<std::uint64_t>(room, p.hash / 4 % 3 * 1000)};
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* given,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const Problem p(of(operation), of(a_layout), of(b_layout), of(c_layout), of(d_layout));
  Algorithm algorithm;
  std::memcpy(&algorithm, given, sizeof algorithm);
  if (!p.right || algorithm.problem != p.hash || workspace_bytes < algorithm.workspace ||
      !aligned(a, algorithm.a) || !aligned(b, algorithm.b) || !aligned(c, algorithm.c) ||
      !aligned(d, algorithm.d) || (p.adds_bias() && !aligned(p.bias, 16)))
    return CUBLAS_STATUS_INVALID_VALUE;
  emulator::expect_allocated(a, p.a.bytes(), "cublasLtMatmul's A");
  emulator::expect_allocated(b, p.b.bytes(), "cublasLtMatmul's B");
  emulator::expect_allocated(d, p.d.bytes(), "cublasLtMatmul's D");
  if (p.adds_bias())
    emulator::expect_allocated(p.bias, static_cast<std::size_t>(p.d.rows) * p.d.element(),
                               "cublasLtMatmul's bias");
  if (algorithm.workspace > 0)
    emulator::expect_allocated(workspace, algorithm.workspace, "cublasLtMatmul's workspace");
  emulator::census::note(
      {.kind = emulator::census::Kind::product,
       .name = "cublasLtMatmul",
       .bytes = static_cast<double>(p.a.bytes() + p.b.bytes() + p.d.bytes()),
       .flops = 2.0 * static_cast<double>(p.d.rows) * static_cast<double>(p.d.columns) *
                static_cast<double>(p.inner() * p.d.count)});
  const cudaDataType scale = p.compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
  const auto factor = [&](const void* f) { return load(scale, f, 0); };
  emulator::enqueue(stream,
                    [=, bytes = algorithm.workspace, by = factor(alpha), keep = factor(beta)] {
                      if (bytes > 0) std::memset(workspace, 0xff, bytes);
                      multiply(p, by, a, b, keep, c, d);
                    });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
