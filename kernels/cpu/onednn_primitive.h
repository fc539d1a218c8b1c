// Plans of computations by oneDNN: which primitives compute the shares of a call, together with the
// reorders that they need. Each thread keeps its plans under a key of everything they depend on.
// onednn.cpp and onednn_matmul.cpp decide what the primitives compute.
#pragma once

#include "../../core/error.h"
#include "../../core/parallel.h"
#include "../options.h"
#include "packed_weights.h"

#include <dnnl.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tutti::kernels::cpu::onednn {

const dnnl::engine& engine();
dnnl::primitive_attr attributes();

// The difference between oneDNN 2 and 3, so that everything below is the same for both. oneDNN 2
// makes the descriptor of a primitive from an operation descriptor, oneDNN 3 directly. The
// arguments and their order are the same.
#if DNNL_VERSION_MAJOR >= 3

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

inline memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return memory::data_type::f32;
    case DType::bfloat16: return memory::data_type::bf16;
    default: fail<DTypeError>("oneDNN: no kernels for {}", to_string(dtype));
  }
}

inline memory::dims dims_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

inline void* pointer(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

inline std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

/// A part of a tensor of the call, and how it lies in memory.
struct Operand {
  std::size_t tensor = 0;   ///< The tensor's number among the pointers of the call.
  std::int64_t offset = 0;  ///< The bytes before the part.
  Desc desc = {};
  std::optional<std::int64_t> copy = {};  ///< The part belongs to this copy of the tensor.
};

/// How a thread computes a call: in shares, which are series of oneDNN primitives. A primitive
/// computes on one thread. Operands that the caller has in another layout than the primitive wants
/// are converted: each part of a weight once, before the shares, all others by the share.
class Plan {
 public:
  /// Begins a share, to which the primitives that follow belong.
  void add_share() { shares_.emplace_back(); }
  /// Adds a primitive to the share.
  template <class PrimitiveDesc>
  void add_primitive(const PrimitiveDesc& desc) {
    shares_.back().push_back({dnnl::primitive(desc.get()), {}, {}});
    add_scratchpad(shares_.back().back().memories, desc.scratchpad_desc());
    runs_reference_ |= std::string_view(desc.impl_info_str()).starts_with("ref");
    ++calls_;
  }
  /// Adds an argument (DNNL_ARG_...) of the primitive, which wants it in layout `wanted`.
  void add(int argument, const Operand& given, const Desc& wanted);
  /// Lets primitives write to float32 copies of a dense tensor, which the plan adds in the end.
  void add_sum(std::size_t tensor, std::int64_t elements, DType dtype, std::int64_t copies);
  /// Computes the shares. `op` names the operation in errors. Takes converted weights from `packed`
  /// unless it is null.
  void run(const char* op, std::initializer_list<void*> pointers, PackedWeights* packed);
  bool has_run() const { return has_run_; }
  /// Returns whether a primitive is one of oneDNN's reference kernels, which are very slow.
  bool runs_reference() const { return runs_reference_; }
  /// Returns how many primitives there are.
  std::size_t calls() const { return calls_; }

 private:
  using Memories = std::unordered_map<int, memory>;  // by DNNL_ARG_...

  struct Conversion {
    dnnl::reorder reorder;
    Memories memories;
    std::size_t offset;  // of the converted operand in the scratch memory
  };
  struct Argument {
    int id;
    Operand given;
    memory own;                            // in the caller's memory
    std::optional<Conversion> conversion;  // of the share
    std::optional<std::size_t> weight;     // the number of the converted weight
  };
  struct Call {
    dnnl::primitive primitive;
    Memories memories;
    std::vector<Argument> arguments;
    std::size_t bytes = 0;  // of converted operands
  };
  struct Weight {
    Operand given;
    Desc wanted;
    Conversion conversion;
    std::shared_ptr<Storage> packed;  // in a run with packed weights
    void* data = nullptr;             // in a run
  };

  struct Sum {
    std::size_t tensor;
    std::int64_t elements, copies;
    DType dtype;
    std::size_t offset;  // of the copies in the scratch memory
  };
  // The memory of a run.
  struct Addresses {
    void* const* pointers;
    char* scratch;
  };

  Conversion convert(const Desc& from, const Desc& to, std::size_t offset);
  std::size_t number_of_weight(const Operand& given, const Desc& wanted);
  void add_scratchpad(Memories& memories, const Desc& desc);
  void* address(const Operand& operand, const Addresses& addresses) const;
  void convert_weights(const Addresses& addresses, PackedWeights* packed);
  void run_call(Call& call, const Addresses& addresses, char* scratch);
  void add_copies(const Sum& sum, const Addresses& addresses) const;

  std::vector<std::vector<Call>> shares_;
  std::vector<Weight> weights_;
  std::vector<Sum> sums_;
  // The scratch memory holds converted weights and copies, and then for each share its converted
  // operands and a scratchpad.
  std::size_t common_bytes_ = 0, share_bytes_ = 0, scratchpad_bytes_ = 0;
  std::size_t calls_ = 0;
  bool runs_reference_ = false;
  bool has_run_ = false;  // Whether the code that oneDNN compiles in the first run exists.
};

/// Everything that a plan depends on, including the thread count, as bytes.
class PlanKey {
 public:
  template <class... Options>
  PlanKey(char operation, std::initializer_list<Tensor> tensors, const Options&... options)
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
  void add(const ConvOptions& options) {
    add(options.stride);
    add(options.padding);
    add(options.dilation);
    add(options.groups);
  }

  std::string text_;
};

/// Adds the shares of a call that is divided among `threads` to a plan.
using Build = std::function<void(Plan& plan, int threads)>;

/// Runs the plan of `key` on the tensors' memory; `build` makes it in the first call. Returns false
/// if oneDNN has no kernel (`build` threw dnnl_unimplemented), and throws an Error that names `op`
/// if there is not enough memory or oneDNN fails otherwise. `packed` holds copies of the weights,
/// or is null.
bool run_cached(const char* op, const PlanKey& key, std::initializer_list<void*> pointers,
                const Build& build, PackedWeights* packed = nullptr);

}  // namespace tutti::kernels::cpu::onednn
