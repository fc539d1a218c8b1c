// Runs oneDNN primitives, together with the reorders that they need, and keeps them per thread
// under a key of everything they depend on. Only onednn.cpp includes this file and decides what the
// primitives compute.
#pragma once

#include "../../core/parallel.h"
#include "../options.h"
#include "packed_weights.h"

#include <dnnl.hpp>

#include <functional>
#include <string>
#include <vector>

namespace tutti::kernels::cpu::onednn {

const dnnl::engine& engine();
dnnl::primitive_attr attributes();

// The difference between oneDNN 2 and 3, so that everything below is the same for both. oneDNN 2
// makes the descriptor of a primitive from an operation descriptor, oneDNN 3 directly. The
// arguments and their order are the same.
#if DNNL_VERSION_MAJOR >= 3

using PoolingForward = dnnl::pooling_forward;
using PoolingBackward = dnnl::pooling_backward;

/// Returns the descriptor of a primitive from the arguments that oneDNN documents, without the
/// engine and the attributes. Throws dnnl::error with dnnl_unimplemented if oneDNN has no kernel.
template <class Primitive, class... Arguments>
typename Primitive::primitive_desc describe(const Arguments&... arguments) {
  return typename Primitive::primitive_desc(engine(), arguments..., attributes());
}

/// The same for a backward primitive, which oneDNN chooses to suit the `forward` descriptor.
template <class Primitive, class Forward, class... Arguments>
typename Primitive::primitive_desc describe_backward(const Forward& forward,
                                                     const Arguments&... arguments) {
  return typename Primitive::primitive_desc(engine(), arguments..., forward, attributes());
}

#else

// The first version of pooling in oneDNN 2 has no dilation.
using PoolingForward = dnnl::pooling_v2_forward;
using PoolingBackward = dnnl::pooling_v2_backward;

template <class Primitive, class... Arguments>
typename Primitive::primitive_desc describe(const Arguments&... arguments) {
  const typename Primitive::desc operation(arguments...);
  return typename Primitive::primitive_desc(operation, attributes(), engine());
}

template <class Primitive, class Forward, class... Arguments>
typename Primitive::primitive_desc describe_backward(const Forward& forward,
                                                     const Arguments&... arguments) {
  const typename Primitive::desc operation(arguments...);
  return typename Primitive::primitive_desc(operation, attributes(), engine(), forward);
}

#endif

using dnnl::memory;
using Desc = memory::desc;

/// A oneDNN primitive, together with the reorders between the layouts of the caller's tensors and
/// those that the primitive requires. Only weights are reordered, because activations are described
/// in their own layout. Only one thread may use it.
class OnednnPrimitive {
 public:
  enum class Direction { in, out };

  template <class PrimitiveDesc>
  void set_primitive(const PrimitiveDesc& desc) {
    primitive_ = dnnl::primitive(desc.get());
    calls_gemm_ = std::string(desc.impl_info_str()).find("gemm") != std::string::npos;
    reserve_scratchpad(desc.scratchpad_desc());
  }
  /// Adds an argument (DNNL_ARG_...), which the caller has in layout `given` and the primitive in
  /// layout `wanted`. The order of calls is the order of the pointers of run().
  void add(int argument, Direction direction, const Desc& given, const Desc& wanted);
  /// Computes the primitive of operation `op`. Throws an Error that names `op` if there is not
  /// enough memory. Takes reordered weights from `packed` unless it is null.
  void run(const char* op, std::initializer_list<void*> pointers, PackedWeights* packed);

 private:
  struct Argument {
    int id;  // DNNL_ARG_...
    Direction direction;
    memory given;   // The caller's memory.
    memory wanted;  // Scratch memory in the primitive's layout, used if the layouts differ.
    dnnl::reorder reorder;
    std::size_t offset;  // The offset of `wanted` in the scratch memory.
  };
  void reserve_scratchpad(const Desc& desc);

  dnnl::primitive primitive_;
  std::vector<Argument> arguments_;
  Desc scratchpad_;
  std::size_t bytes_ = 0, scratchpad_bytes_ = 0;
  bool calls_gemm_ = false;  // Whether the primitive calls oneDNN's GEMM, which allocates memory.
  bool has_run_ = false;     // Whether the code that oneDNN compiles in the first call exists.
};

/// Everything that a primitive depends on, including the thread count, as bytes.
class PrimitiveKey {
 public:
  template <class... Options>
  PrimitiveKey(char operation, std::initializer_list<Tensor> tensors, const Options&... options)
      : text_(1, operation) {
    add(num_threads());
    for (const Tensor& tensor : tensors) add(tensor);
    (add(options), ...);
  }
  const std::string& text() const { return text_; }

 private:
  void add(std::int64_t value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void add(const Dims& dims) {
    add(dims.size());
    text_.append(reinterpret_cast<const char*>(dims.begin()),
                 static_cast<std::size_t>(dims.size()) * sizeof(std::int64_t));
  }
  void add(const Tensor& tensor) {
    if (!tensor.defined()) return add(-1);
    add(static_cast<std::int64_t>(tensor.dtype()));
    add(tensor.shape());
    add(tensor.strides());
  }
  void add(const PoolOptions& options) {
    add(options.kernel);
    add(options.stride);
    add(options.padding);
    add(options.count_include_pad);
  }
  void add(const ConvOptions& options) {
    add(options.stride);
    add(options.padding);
    add(options.dilation);
    add(options.groups);
  }

  std::string text_;
};

/// Runs the primitive of `key` on the tensors' memory; `build` creates it in the first call. Each
/// thread caches its own primitives, because their memory objects hold the pointers of the call.
/// Returns false if oneDNN has no such primitive (`build` threw dnnl_unimplemented), and throws an
/// Error that names `op` if there is not enough memory or oneDNN fails otherwise. `packed` holds
/// copies of the weights, or is null.
bool run_cached(const char* op, const PrimitiveKey& key, std::initializer_list<void*> pointers,
                const std::function<void(OnednnPrimitive&)>& build,
                PackedWeights* packed = nullptr);

}  // namespace tutti::kernels::cpu::onednn
