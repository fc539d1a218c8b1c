// Expectations that state dicts are equal to the bit: those of two runs, or of a group's ranks.
#pragma once

#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>

namespace tutti::test {

inline void expect_equal_bits(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(to_vector(a[i].second) == to_vector(b[i].second)) << a[i].first;
  }
}

/// Every rank calls it.
inline void expect_equal_bits_on_every_rank(const StateDict& state, const ProcessGroup& group) {
  for (const auto& [name, tensor] : state) {
    Shape shape = tensor.shape();
    shape.insert(0, group.size());
    const Tensor all = empty(shape, {.dtype = tensor.dtype()});
    group.all_gather(tensor, all, {.name = name}).wait();
    const auto first = to_vector(all.select(0, 0));
    for (int r = 1; r < group.size(); ++r)
      EXPECT_TRUE(to_vector(all.select(0, r)) == first) << name << " on rank " << r;
  }
}

}  // namespace tutti::test
