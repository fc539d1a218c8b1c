// Replaces the CUDA kernels where the library is built without them.
#include "../../core/cuda/runtime.h"
#include "../kernels.h"

namespace tutti::kernels::cuda {

const Kernels& table() { fail<DeviceError>("cuda: {}", tutti::cuda::why_unavailable()); }

}  // namespace tutti::kernels::cuda
