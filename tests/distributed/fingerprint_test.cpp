// What the calls of all ranks must have in common to be one collective.
#include <tutti/core/create.h>
#include <tutti/distributed/collective.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace distributed;

// The ranks of a host compare fingerprints, and hosts compare hashes of them.
TEST(Fingerprint, DiffersInAllThatRanksMustAgreeOn) {
  const Collective call{
      .operation = Operation::all_reduce,
      .op = ReduceOp::sum,
      .input = ones({2, 6}),
      .options = {.name = "layer1", .detail = " on rank 0", .step = ", backward 1"},
      .sequence = 3};
  const Fingerprint one = fingerprint(call);
  const auto expect_differs = [&](auto change, bool differs = true) {
    Collective changed = call;
    change(changed);
    const Fingerprint other = fingerprint(changed);
    EXPECT_EQ(one == other, !differs) << to_string(other);
    EXPECT_EQ(one.hash() == other.hash(), !differs) << to_string(other);
  };
  expect_differs([](Collective& c) { c.operation = Operation::reduce_scatter; });
  expect_differs([](Collective& c) { c.op = ReduceOp::max; });
  expect_differs([](Collective& c) { c.root = 1; });
  expect_differs([](Collective& c) { c.sequence = 4; });
  expect_differs([](Collective& c) { c.options.name = "layer2"; });
  expect_differs([](Collective& c) { c.options.step = ", backward 2"; });
  expect_differs([](Collective& c) { c.input = ones({2, 6}, {.dtype = float64}); });
  for (const Shape& shape : {Shape{2, 7}, {3, 4}, {12}, {2, 6, 1}})
    expect_differs([&](Collective& c) { c.input = ones(shape); });
  expect_differs(
      [](Collective& c) {
        c.options.detail = " on rank 1";
        c.options.timeout = std::chrono::seconds(1);
      },
      false);
}

}  // namespace
}  // namespace tutti
