// A test for every backend: a collective outlives the handles of its group. Every rank of `group`
// calls it.
#pragma once

#include <tutti/core/create.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>

namespace tutti::test {

inline void check_a_group_may_go_before_its_work(const ProcessGroup& group) {
  // With MPI the caller carries out the first size, and the communication thread the second.
  for (const std::int64_t n : {100, 30000}) {
    const Tensor x = ones({n});
    distributed::Work work;
    {
      const ProcessGroup other = group.split(0);
      work = other.all_reduce(x);
      const distributed::Work thrown_away = other.all_reduce(ones({n}));
    }
    work.wait();
    EXPECT_EQ(x.select(0, n - 1).item<int>(), group.size());
  }
}

}  // namespace tutti::test
