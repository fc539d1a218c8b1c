// How the CPU kernels run oneDNN: plans (a primitive with the reorders it needs) kept per thread
// under a key of all they depend on. Included by onednn.cpp only; what the plans compute is decided
// there.
#pragma once

#include "../../core/parallel.h"
#include "../convolution.h"
#include "../pooling.h"

#include <dnnl.hpp>

#include <functional>
#include <string>
#include <vector>

namespace tutti::kernels::cpu::onednn {

using dnnl::memory;
using Desc = memory::desc;

const dnnl::engine& engine();
dnnl::primitive_attr attributes();

/// A primitive with the reorders between the caller's layouts and the ones it wants (weights only:
/// activations are described as they are). Belongs to one thread.
class Plan {
 public:
  enum class Direction { in, out };

  template <class PrimitiveDesc>
  void set_primitive(const PrimitiveDesc& desc) {
    primitive_ = dnnl::primitive(desc.get());
    reserve_scratchpad(desc.scratchpad_desc());
  }
  /// The order of calls is the order of the pointers given to run().
  void add(int argument, Direction direction, const Desc& given, const Desc& wanted);
  void run(std::initializer_list<void*> pointers);

 private:
  struct Operand {
    int argument;
    Direction direction;
    memory outer, inner;  // the caller's memory, and ours where the layout differs
    dnnl::reorder reorder;
    std::size_t offset;  // of `inner` in the scratch block
  };
  void reserve_scratchpad(const Desc& desc);

  dnnl::primitive primitive_;
  std::vector<Operand> operands_;
  Desc scratchpad_;
  std::size_t bytes_ = 0, scratchpad_bytes_ = 0;
};

/// Everything a plan depends on, as bytes; the thread count among it.
class Key {
 public:
  explicit Key(char operation) : text_(1, operation) { add(num_threads()); }
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
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Runs the plan of `key` on the tensors' memory, made by `build` the first time. Each thread keeps
/// its own plans: their memory objects hold the pointers of the call. false where oneDNN has no
/// such primitive (`build` threw dnnl_unimplemented); Error that names `op` where it fails
/// otherwise.
bool run(const char* op, const Key& key, std::initializer_list<void*> pointers,
         const std::function<void(Plan&)>& build);

}  // namespace tutti::kernels::cpu::onednn
