#include "dlpack.h"

#include "create.h"

#include <array>

// As in dlpack/dlpack.h of version 0.2 and later.
struct DLManagedTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t rank;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
  void* owner;
  void (*deleter)(DLManagedTensor* self);
};

namespace tutti {
namespace {

constexpr std::int32_t on_cpu = 1, on_cuda = 2, in_pinned_memory = 3;

// The code and the bits of each of tutti's dtypes.
struct ElementCode {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr std::array element_codes{ElementCode{int64, 0, 64},   ElementCode{uint8, 1, 8},
                                   ElementCode{float16, 2, 16}, ElementCode{float32, 2, 32},
                                   ElementCode{float64, 2, 64}, ElementCode{bfloat16, 4, 16},
                                   ElementCode{boolean, 6, 8}};

// What a tensor that was given out keeps alive.
struct Owner {
  Tensor tensor;
  Shape shape;
  Strides strides;
  DLManagedTensor managed;
};

DType dtype_of_managed(const DLManagedTensor& m) {
  for (const ElementCode& each : element_codes)
    if (each.code == m.code && each.bits == m.bits && m.lanes == 1) return each.dtype;
  fail<DTypeError>(
      "from_dlpack: a tensor of type code {} with {} bits and {} lanes is none of tutti's dtypes; "
      "convert it first",
      m.code, m.bits, m.lanes);
}

Device device_of_managed(const DLManagedTensor& m) {
  if (m.device_type == on_cuda) return Device::cuda(m.device_id);
  if (m.device_type == on_cpu || m.device_type == in_pinned_memory) return Device::cpu();
  fail<DeviceError>("from_dlpack: expected memory of the CPU or of CUDA, got device type {}",
                    m.device_type);
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  if (tensor.requires_grad())
    fail<Error>("to_dlpack: no gradient flows to another library; pass tensor.detach()");
  auto* const owner = new Owner{tensor, tensor.shape(), tensor.strides(), {}};
  DLManagedTensor& m = owner->managed;
  m.data = tensor.raw();
  m.device_type = tensor.device().is_cpu() ? on_cpu : on_cuda;
  m.device_id = tensor.device().is_cpu() ? 0 : tensor.device().index();
  m.rank = tensor.rank();
  for (const ElementCode& each : element_codes)
    if (each.dtype == tensor.dtype()) m.code = each.code, m.bits = each.bits;
  m.lanes = 1;
  m.shape = owner->shape.begin();
  m.strides = owner->strides.begin();
  m.owner = owner;
  m.deleter = [](DLManagedTensor* self) { delete static_cast<Owner*>(self->owner); };
  return &m;
}

Tensor from_dlpack(DLManagedTensor* managed) {
  if (!managed)  // as PyCapsule_GetPointer() returns for a name that is not the capsule's
    fail<ValueError>(
        "from_dlpack: expected a DLManagedTensor, got a null pointer; a capsule of Python named "
        "dltensor_versioned holds a DLManagedTensorVersioned, which is not taken: call "
        "__dlpack__() without max_version");
  const std::shared_ptr<DLManagedTensor> owner(managed, [](DLManagedTensor* m) {
    if (m->deleter) m->deleter(m);
  });
  const Shape shape(managed->shape, managed->shape + managed->rank);
  const Strides strides = managed->strides
                              ? Strides(managed->strides, managed->strides + managed->rank)
                              : dense_strides(shape);
  return from_blob(
      static_cast<char*>(managed->data) + managed->byte_offset, shape, strides,
      dtype_of_managed(*managed), [owner] {}, device_of_managed(*managed));
}

}  // namespace tutti
