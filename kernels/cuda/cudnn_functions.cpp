// Defines the functions of cuDNN that we call. Each passes the call on to the library, which is
// loaded at the first one (core/cuda/shared_library.h). CMake says where it found cuDNN.
#include "../../core/cuda/shared_library.h"

#include <cudnn.h>
#include <fmt/format.h>

namespace {

const tutti::cuda::SharedLibrary& library() {
  static const auto* loaded = new tutti::cuda::SharedLibrary(
      "cuDNN", fmt::format("libcudnn.so.{}", CUDNN_MAJOR), TUTTI_CUDNN_FOLDER);
  return *loaded;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return library().call<cudnnCreate>(__func__, handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return library().call<cudnnSetStream>(__func__, handle, stream);
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return library().call<cudnnGetErrorString>(__func__, status);
}
void cudnnGetLastErrorString(char* message, size_t bytes) {
  return library().call<cudnnGetLastErrorString>(__func__, message, bytes);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return library().call<cudnnBackendCreateDescriptor>(__func__, type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return library().call<cudnnBackendDestroyDescriptor>(__func__, descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return library().call<cudnnBackendSetAttribute>(__func__, descriptor, name, type, count,
                                                  elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  return library().call<cudnnBackendGetAttribute>(__func__, descriptor, name, type, requested,
                                                  count, elements);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return library().call<cudnnBackendFinalize>(__func__, descriptor);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variables) {
  return library().call<cudnnBackendExecute>(__func__, handle, plan, variables);
}

}  // extern "C"
