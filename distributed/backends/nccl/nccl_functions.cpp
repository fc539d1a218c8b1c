// Defines the functions of NCCL that we call. Each passes the call on to the library, which is
// loaded at the first one (core/cuda/shared_library.h). CMake says where it found NCCL.
#include "../../../core/cuda/shared_library.h"
#include "../../../core/error.h"
#include "nccl.h"

#include <fmt/format.h>
#include <nccl.h>

namespace {

const tutti::cuda::SharedLibrary& library() {
  static const auto* loaded = new tutti::cuda::SharedLibrary(
      "NCCL", fmt::format("libnccl.so.{}", NCCL_MAJOR), TUTTI_NCCL_FOLDER);
  return *loaded;
}

}  // namespace

std::string tutti::distributed::nccl::why_not_loaded() {
  try {
    library();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  return library().call<ncclGetErrorString>(__func__, result);
}
const char* ncclGetLastError(ncclComm_t comm) {
  return library().call<ncclGetLastError>(__func__, comm);
}
ncclResult_t ncclGetVersion(int* version) {
  return library().call<ncclGetVersion>(__func__, version);
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return library().call<ncclGetUniqueId>(__func__, id);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return library().call<ncclCommInitRankConfig>(__func__, comm, size, id, rank, config);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  return library().call<ncclCommSplit>(__func__, comm, color, key, child, config);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return library().call<ncclCommGetAsyncError>(__func__, comm, error);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return library().call<ncclCommAbort>(__func__, comm);
}
ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return library().call<ncclAllReduce>(__func__, input, output, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return library().call<ncclReduceScatter>(__func__, input, output, count, type, op, comm, stream);
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return library().call<ncclAllGather>(__func__, input, output, count, type, comm, stream);
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return library().call<ncclBroadcast>(__func__, input, output, count, type, root, comm, stream);
}

}  // extern "C"
