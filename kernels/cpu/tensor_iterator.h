// TensorIterator visits several tensors of one shape together, block by block, from several
// threads. Blocks are as long and as dense as the tensors' layouts allow, and short enough for
// buffers on the stack. The caller decides what is computed on a block.
//
// BlockReader and BlockWriter turn a block of any dtype and stride into a dense array of the type
// that kernels compute in, and back. Dense elements of that very type are used in place; all others
// go through a buffer that fits the L1 cache. So an operation is compiled once for each compute
// type, and only for dense arrays, which vectorise.
#pragma once

#include "../../core/tensor.h"
#include "../element_types.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

/// `count` elements of each tensor k: the first at offset[k], the next ones stride[k] apart (0 for
/// a tensor that broadcasts).
struct Block {
  static constexpr int max_tensors = 5;
  static constexpr std::int64_t max_count = 1024;
  std::int64_t count = 0;
  std::array<std::int64_t, max_tensors> offset{}, stride{};

  /// Returns the offset of element i of tensor k.
  std::int64_t at(std::size_t k, std::int64_t i) const { return offset[k] + i * stride[k]; }
};

class TensorIterator {
 public:
  /// The first tensor (usually the output) decides the order; the others broadcast to its shape.
  TensorIterator(std::initializer_list<const Tensor*> tensors);

  /// Calls body(const Block&) for blocks that cover the first tensor, from several threads.
  /// `cost` is the work for an element, 1 where it computes one number.
  template <class Body>
  void for_each_block(const Body& body, std::int64_t cost = 1) const {
    visit_in_parallel(call_body<Body>, &body, cost);
  }
  /// Calls body(const Block&) for the same elements on the calling thread alone.
  template <class Body>
  void for_each_block_serially(const Body& body) const {
    visit(0, product(shape_, 0, shape_.size()), call_body<Body>, &body);
  }

 private:
  using Call = void (*)(const void* body, const Block& block);
  template <class Body>
  static void call_body(const void* body, const Block& block) {
    (*static_cast<const Body*>(body))(block);
  }
  void make_blocks_long();
  void tile_transposed();
  void visit_in_parallel(Call call, const void* body, std::int64_t cost) const;
  void visit(std::int64_t begin, std::int64_t end, Call call, const void* body) const;

  std::size_t tensors_;
  Shape shape_;  // The merged dimensions, outermost first; never empty.
  std::array<Strides, Block::max_tensors> strides_;
};

/// Throws if an index is not in [0, size) and not the `ignored` one, which targets of `op` may
/// have.
void check_indices(const char* op, const Tensor& indices, std::int64_t size,
                   std::optional<std::int64_t> ignored = {});

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

/// Converts `count` elements that begin at `from`, `stride` apart, into dense numbers.
template <class T, class C>
void load_elements(const T* from, std::int64_t stride, C* to, std::int64_t count) {
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i]);
  else if (stride == 0) std::fill_n(to, count, convert<C>(*from));
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i * stride]);
}

/// Converts `count` dense numbers into elements that begin at `to`, `stride` apart.
template <class T, class C>
void store_elements(const C* values, T* to, std::int64_t stride, std::int64_t count) {
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(values[i]);
  else
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = convert<T>(values[i]);
}

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
