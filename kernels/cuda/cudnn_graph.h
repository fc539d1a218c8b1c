// Convolutions as operation graphs of cuDNN's backend API: describing one, and finding execution
// plans for it. Nothing here touches device memory or needs a device: given a device's properties
// instead of a handle, plans are built on any machine, which is how the tests build them. Running
// one is convolution.cpp's business.
#pragma once

#include "../../core/tensor.h"

#include <cudnn.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti::kernels::cuda::cudnn {

/// DeviceError with the call and cuDNN's own words unless `status` is a success.
void check(cudnnStatus_t status, const char* call);

/// A backend descriptor with an owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor();

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  /// `type` must be cuDNN's name for the C++ type of the values.
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, std::int64_t value) {
    set(name, CUDNN_TYPE_INT64, value);
  }
  void set(cudnnBackendAttributeName_t name, const Dims& values);
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);
  void finalize();
  /// False where cuDNN cannot do what is described.
  bool try_finalize() { return cudnnBackendFinalize(descriptor_) == CUDNN_STATUS_SUCCESS; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// A tensor as cuDNN sees it: four or five dimensions, every stride what the layout says, also
/// those of size 1.
struct Operand {
  DType dtype = float32;
  Shape shape = {};
  Strides strides = {};
  std::int64_t alignment = 16;  ///< of its address, in bytes
};

/// Of a tensor of one to three spatial dimensions, dense in `format`; one dimension becomes two.
Operand operand(DType dtype, const Shape& shape, MemoryFormat format,
                const void* address = nullptr);
/// An option with one number for each of one to three dimensions as cuDNN wants it; `filler` for a
/// dimension put in.
Dims spatial(const Dims& option, std::int64_t filler);

enum class Direction { forward, backward_input, backward_weight };

/// One convolution, whole: equal problems have equal plans. In the backward directions `y` is its
/// gradient, and so is what the direction computes.
struct Problem {
  Direction direction = Direction::forward;
  Operand x, w, y;
  std::optional<DType> bias =
      {};  ///< forward only: added to the sums before they are rounded to y's dtype
  Dims stride, padding, dilation;  ///< as spatial() gives them
  bool allow_tf32 = false, deterministic = false;

  std::string text() const;               ///< for errors
  std::vector<std::int64_t> key() const;  ///< for caches: different problems, different keys
};

/// The names of a graph's tensors.
enum Name : std::int64_t { x_name = 1, w_name = 2, y_name = 3, bias_name = 4, sum_name = 5 };

/// Where a plan will run: on a handle's device, or on one with these properties.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
};

/// Something cudnnBackendExecute can run, and the bytes of workspace it needs.
struct Plan {
  Descriptor descriptor;
  std::int64_t workspace = 0;
};

/// Up to `limit` plans, what cuDNN's heuristics think fastest first; none where cuDNN cannot
/// compute the problem. Products are summed in float32 (float64 for float64); float32 inputs are
/// rounded only where TF32 is allowed.
std::vector<Plan> find_plans(const Problem& problem, const Target& target, std::size_t limit);

}  // namespace tutti::kernels::cuda::cudnn
