// Defines the functions of cuBLASLt that we call. Each passes the call on to the library, which is
// loaded at the first one (core/cuda/shared_library.h). CMake says where it found CUDA.
#include "../../core/cuda/shared_library.h"

#include <cublasLt.h>
#include <fmt/format.h>

namespace {

const tutti::cuda::SharedLibrary& library() {
  static const auto* loaded = new tutti::cuda::SharedLibrary(
      "cuBLASLt", fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), TUTTI_CUDA_FOLDER);
  return *loaded;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return library().call<cublasLtCreate>(__func__, handle);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return library().call<cublasLtGetStatusString>(__func__, status);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  return library().call<cublasLtMatrixLayoutCreate>(__func__, layout, type, rows, columns, leading);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return library().call<cublasLtMatrixLayoutDestroy>(__func__, layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, size_t bytes) {
  return library().call<cublasLtMatrixLayoutSetAttribute>(__func__, layout, name, value, bytes);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  return library().call<cublasLtMatmulDescCreate>(__func__, operation, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return library().call<cublasLtMatmulDescDestroy>(__func__, operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  return library().call<cublasLtMatmulDescSetAttribute>(__func__, operation, name, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return library().call<cublasLtMatmulPreferenceCreate>(__func__, preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return library().call<cublasLtMatmulPreferenceDestroy>(__func__, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
  return library().call<cublasLtMatmulPreferenceSetAttribute>(__func__, preference, name, value,
                                                              bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a_layout,
    cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout,
    cublasLtMatrixLayout_t d_layout, cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  return library().call<cublasLtMatmulAlgoGetHeuristic>(__func__, handle, operation, a_layout,
                                                        b_layout, c_layout, d_layout, preference,
                                                        requested, results, count);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return library().call<cublasLtMatmul>(__func__, handle, operation, alpha, a, a_layout, b,
                                        b_layout, beta, c, c_layout, d, d_layout, algorithm,
                                        workspace, workspace_bytes, stream);
}

}  // extern "C"
