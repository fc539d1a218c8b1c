// Walk: visits several tensors of one shape together, block by block, in parallel. Dimensions that
// all operands can merge are merged, the first operand's largest stride outermost, so that blocks
// are as long and as dense as they can be. What is computed on a block is the caller's business;
// blocks are short enough for buffers on the stack.
#pragma once

#include "../../core/tensor.h"

#include <array>
#include <initializer_list>

namespace tutti::kernels::cpu {

/// `count` elements of each operand k, the first at offset at[k], the next ones step[k] apart (0: a
/// broadcast operand).
struct Block {
  static constexpr int max_operands = 4;
  static constexpr std::int64_t max_count = 1024;
  std::int64_t count = 0;
  std::array<std::int64_t, max_operands> at{}, step{};
};

class Walk {
 public:
  /// The first operand (usually the output) sets the order; the others broadcast to its shape.
  Walk(std::initializer_list<const Tensor*> operands);

  /// Calls body(const Block&) for blocks that cover the output, from several threads. `body` must
  /// not throw.
  template <class Body>
  void run(const Body& body) const {
    run_erased([](const void* context,
                  const Block& block) { (*static_cast<const Body*>(context))(block); },
               &body);
  }
  /// The same on the calling thread alone.
  template <class Body>
  void run_serial(const Body& body) const {
    run_range(
        0, product(shape_, 0, shape_.size()),
        [](const void* context, const Block& block) {
          (*static_cast<const Body*>(context))(block);
        },
        &body);
  }

 private:
  void make_blocks_long();
  void tile_transposed();
  using Call = void (*)(const void* context, const Block& block);
  void run_erased(Call call, const void* context) const;
  void run_range(std::int64_t begin, std::int64_t end, Call call, const void* context) const;

  int operands_;
  Shape shape_;  // merged; never empty
  std::array<Strides, Block::max_operands> strides_;
};

}  // namespace tutti::kernels::cpu
