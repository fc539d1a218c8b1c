// BlockReader and BlockWriter turn a block of any dtype and stride (tensor_iterator.h) into a dense
// array of the type that kernels compute in, and back. Dense elements of that very type are used in
// place; all others go through a buffer that fits the L1 cache. So an operation is compiled once
// for each compute type, and only for dense arrays, which vectorise.
#pragma once

#include "../element_types.h"
#include "tensor_iterator.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

template <class C>
using BlockBuffer = std::array<C, static_cast<std::size_t>(Block::max_count)>;

/// Reads tensor `k` of a TensorIterator as elements of type C: float, double or int64.
template <class C>
class BlockReader {
 public:
  BlockReader(const Tensor& x, int k);
  bool is_direct(const Block& block) const { return same_type_ && block.stride[k_] == 1; }
  /// Returns the elements of the block: in place, or converted into `buffer`.
  const C* read(const Block& block, C* buffer) const {
    if (is_direct(block)) return reinterpret_cast<const C*>(base_) + block.offset[k_];
    load_(base_, block.offset[k_], block.stride[k_], buffer, block.count);
    return buffer;
  }

 private:
  using Load = void (*)(const char* base, std::int64_t offset, std::int64_t stride, C* to,
                        std::int64_t count);
  const char* base_;
  std::size_t k_;
  bool same_type_;
  Load load_;
};

/// Writes the output, tensor 0 of a TensorIterator, from elements of type C: float, double, int64
/// or bool.
template <class C>
class BlockWriter {
 public:
  explicit BlockWriter(const Tensor& x);
  bool is_direct(const Block& block) const { return same_type_ && block.stride[0] == 1; }
  /// Returns the array for the block's results: the output itself, or `buffer`, which `write`
  /// converts.
  C* destination(const Block& block, C* buffer) const {
    return is_direct(block) ? reinterpret_cast<C*>(base_) + block.offset[0] : buffer;
  }
  /// Writes `values` to the output unless they are there already.
  void write(const Block& block, const C* values) const {
    if (!is_direct(block)) store_(values, base_, block.offset[0], block.stride[0], block.count);
  }

 private:
  using Store = void (*)(const C* values, char* base, std::int64_t offset, std::int64_t stride,
                         std::int64_t count);
  char* base_;
  bool same_type_;
  Store store_;
};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
