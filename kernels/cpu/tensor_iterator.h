// TensorIterator visits several tensors of one shape together, block by block, from several
// threads. Blocks are as long and as dense as the tensors' layouts allow, and short enough for
// buffers on the stack. The caller decides what is computed on a block.
#pragma once

#include "../../core/tensor.h"

#include <array>
#include <initializer_list>

namespace tutti::kernels::cpu {

/// `count` elements of each tensor k: the first at offset[k], the next ones stride[k] apart (0 for
/// a tensor that broadcasts).
struct Block {
  static constexpr int max_tensors = 4;
  static constexpr std::int64_t max_count = 1024;
  std::int64_t count = 0;
  std::array<std::int64_t, max_tensors> offset{}, stride{};
};

class TensorIterator {
 public:
  /// The first tensor (usually the output) decides the order; the others broadcast to its shape.
  TensorIterator(std::initializer_list<const Tensor*> tensors);

  /// Calls body(const Block&) for blocks that cover the first tensor, from several threads. `body`
  /// must not throw.
  template <class Body>
  void for_each_block(const Body& body) const {
    visit_in_parallel(call_body<Body>, &body);
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
  void visit_in_parallel(Call call, const void* body) const;
  void visit(std::int64_t begin, std::int64_t end, Call call, const void* body) const;

  std::size_t tensors_;
  Shape shape_;  // The merged dimensions, outermost first; never empty.
  std::array<Strides, Block::max_tensors> strides_;
};

}  // namespace tutti::kernels::cpu
