// DLPack (https://dmlc.github.io/dlpack) passes tensors between libraries of one process without a
// copy: pictures from a host program, results to NumPy or PyTorch. Only its plain form is known;
// DLManagedTensorVersioned, whose tensors may be read-only, is another type, which is not taken.
#pragma once

#include "tensor.h"

struct DLManagedTensor;  // Every copy of dlpack/dlpack.h declares it with the same layout.
struct DLManagedTensorVersioned;

namespace tutti {

/// Returns a view of `tensor` for another library, which calls its `deleter` once. Both share the
/// memory. Throws an Error for a tensor that requires grad: pass detach().
DLManagedTensor* to_dlpack(const Tensor& tensor);

/// Returns a view of another library's tensor, whose `deleter` runs when the last view is gone, or
/// at once where this throws: a DTypeError for a dtype that tutti does not have, a DeviceError for
/// memory that is neither the host's nor CUDA's, a ShapeError for negative strides or more than 8
/// dimensions, a ValueError for a null pointer.
Tensor from_dlpack(DLManagedTensor* managed);
/// The versioned form is not taken: ask the other library for the plain one.
Tensor from_dlpack(DLManagedTensorVersioned* managed) = delete;

}  // namespace tutti
