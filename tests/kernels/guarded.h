// Guarded: dense tensors that begin anywhere in a larger block of memory. A kernel that writes
// before or behind its tensor changes the rest of the block, which the test sees.
#pragma once

#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <vector>

namespace tutti::test {

class Guarded {
 public:
  /// Returns a copy of `values` in a block of its own. The dimensions are stored in the order
  /// `order`, the last one innermost; without an order the copy is row-major.
  Tensor operator()(const Tensor& values, Generator& random, Dims order = {}) {
    const int rank = values.rank();
    if (order.empty())
      for (int d = 0; d < rank; ++d) order.push_back(d);
    Strides strides = Dims::filled(rank, 1);
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const auto d = static_cast<int>(order[i]);
      strides[d] = stride;
      stride *= std::max<std::int64_t>(1, values.shape()[d]);
    }
    const std::int64_t before = random.below(9), after = 1 + random.below(9);
    const Tensor block = full({before + values.numel() + after}, guard, {values.dtype()});
    blocks_.push_back({block.slice(0, 0, before),
                       block.slice(0, before + values.numel(), before + values.numel() + after)});
    const Tensor inside = block.alias(values.shape(), strides, before);
    inside.copy_(values);
    return inside;
  }

  /// Fails the test if the memory around a tensor was changed.
  void expect_intact() const {
    for (const auto& block : blocks_)
      for (const Tensor& margin : {block.before, block.after})
        for (const double value : to_vector(margin)) EXPECT_EQ(value, guard);
  }

 private:
  static constexpr double guard = 77;
  struct Block {
    Tensor before, after;
  };
  std::vector<Block> blocks_;
};

}  // namespace tutti::test
