// This file describes convolutions as operation graphs of cuDNN's backend API and finds execution
// plans for them. It uses no device memory and needs no device: given a device's properties instead
// of a handle, it builds plans on any machine, as the tests do. convolution.cpp runs the plans.
#pragma once

#include "../../core/tensor.h"

#include <cudnn.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace tutti::kernels::cuda::cudnn {

/// Throws DeviceError with the call and cuDNN's error text unless `status` is a success.
void check(cudnnStatus_t status, const char* call);

/// Owns a backend descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }
  /// Sets an attribute. `type` must be cuDNN's name for the C++ type of the values.
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
  /// Finalizes the descriptor. Returns false if cuDNN does not support what it describes.
  bool try_finalize() { return cudnnBackendFinalize(get()) == CUDNN_STATUS_SUCCESS; }

 private:
  struct Destroy {
    void operator()(cudnnBackendDescriptor_t d) const { cudnnBackendDestroyDescriptor(d); }
  };
  std::unique_ptr<std::remove_pointer_t<cudnnBackendDescriptor_t>, Destroy> descriptor_;
};

/// A tensor as cuDNN describes it. It has four or five dimensions, and every stride follows from
/// the layout, also those of dimensions of size 1.
struct TensorDescription {
  DType dtype = float32;
  Shape shape = {};
  Strides strides = {};
  std::int64_t alignment = 16;  ///< The alignment of the address, in bytes.
};

/// Describes a tensor of one to three spatial dimensions that is dense in `format`. A single
/// spatial dimension becomes two.
TensorDescription describe(DType dtype, const Shape& shape, MemoryFormat format,
                           const void* address = nullptr);
/// Returns an option that has one number for each spatial dimension in the form that cuDNN
/// requires: a single dimension becomes two, with `filler` for the first.
Dims spatial(const Dims& option, std::int64_t filler);

enum class Direction { forward, backward_input, backward_weight };

/// Everything a plan depends on. In the backward directions `y` is its gradient, and the tensor
/// that the direction computes is a gradient, too.
struct ConvolutionProblem {
  Direction direction = Direction::forward;
  TensorDescription x, w, y;
  std::optional<DType> bias =
      {};  ///< forward only: added to the sums before they are rounded to y's dtype
  Dims stride, padding, dilation;  ///< As returned by spatial().
  bool allow_tf32 = false, deterministic = false;

  std::string text() const;               ///< Returns a description for error messages.
  std::vector<std::int64_t> key() const;  ///< Returns a cache key that is unique to the problem.
};

/// The identifiers of a graph's tensors.
enum TensorId : std::int64_t { x_id = 1, w_id = 2, y_id = 3, bias_id = 4, sum_id = 5 };

/// The device on which a plan will run: that of a handle, or any device with these properties.
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
};

/// Describes a tensor of an operation graph, by a number that is unique in the graph. A virtual
/// tensor is passed from one operation to the next without being written to memory.
Descriptor tensor(const TensorDescription& t, std::int64_t id, bool is_virtual = false);
/// Returns the convolution of x, w and y in the problem's direction.
Descriptor operation_of(const ConvolutionProblem& p, const Descriptor& x, const Descriptor& w,
                        const Descriptor& y);
Descriptor graph_of(const std::vector<Descriptor>& operations, const PlanTarget& target);

/// One of cuDNN's algorithms: its number among those for an operation graph, and how it computes.
struct Engine {
  std::int64_t index = 0;
  std::vector<cudnnBackendNumericalNote_t> notes;
  bool has(cudnnBackendNumericalNote_t note) const;
};

/// What cudnnBackendExecute runs, and the bytes of workspace that it needs.
struct ExecutionPlan {
  Descriptor descriptor;
  Engine engine;
  std::int64_t workspace = 0;
};

/// Returns the engine configurations that one mode of the heuristics proposes for an operation
/// graph, best first.
std::vector<Descriptor> configurations(const Descriptor& graph, cudnnBackendHeurMode_t mode,
                                       const PlanTarget& target);
Engine engine_of(const Descriptor& configuration);
/// Returns the plan of a configuration, or none if cuDNN cannot run the configuration.
std::optional<ExecutionPlan> plan_of(const Descriptor& configuration, const PlanTarget& target);

/// Finds the plans for a problem one at a time, fastest first according to cuDNN's heuristics,
/// because cuDNN may compile a kernel for each. Sums are computed in float32 (float64 for float64).
/// float32 inputs are rounded to TF32 only if that is allowed.
class PlanSearch {
 public:
  using Plan = ExecutionPlan;
  PlanSearch(const ConvolutionProblem& problem, const PlanTarget& target);
  /// Returns the next plan, or none if cuDNN has no other for the problem.
  std::optional<ExecutionPlan> next();

 private:
  bool propose_more();

  ConvolutionProblem problem_;
  PlanTarget target_;
  Descriptor graph_;
  std::size_t modes_ = 0;  // How many of the heuristics' modes were asked.
  std::vector<Descriptor> configurations_;
  std::size_t position_ = 0;
};

}  // namespace tutti::kernels::cuda::cudnn
