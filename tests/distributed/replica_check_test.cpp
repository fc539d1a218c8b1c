// check_replicas() finds a tensor that drifted by one bit, on every rank.
#include <tutti/core/create.h>
#include <tutti/distributed/diagnostics/replica_check.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace distributed;

StateDict state_of_a_rank() {
  Generator generator(3);
  return {{"layer1.weight", randn({5, 7}, {}, generator)},
          {"layer1.running_mean", randn({5}, {.dtype = float64}, generator)},
          {"layer2.flag", ones({3}, {.dtype = uint8})},
          {"empty", empty({0})}};
}

TEST(ReplicaCheckOverThreads, EqualStatesPassWhateverTheirLayout) {
  run_ranks(3, [](const ProcessGroup& group) {
    StateDict state = state_of_a_rank();
    if (group.rank() == 1)
      state[0].second = state[0].second.transpose(0, 1).contiguous().transpose(0, 1);
    EXPECT_NO_THROW(check_replicas(state, group));
  });
}

TEST(ReplicaCheckOverThreads, NamesTheFirstTensorThatDriftedAndTheRanks) {
  for (const std::size_t drifting : {0u, 1u, 2u})
    run_ranks(3, [&](const ProcessGroup& group) {
      const StateDict state = state_of_a_rank();
      check_replicas(state, group);
      if (group.rank() == 2) {
        auto* last = static_cast<unsigned char*>(state[drifting].second.raw()) +
                     static_cast<std::size_t>(state[drifting].second.numel()) *
                         size_of(state[drifting].second.dtype()) -
                     1;
        *last ^= 1;
      }
      try {
        check_replicas(state, group, " (found after step 4)");
        ADD_FAILURE() << "rank " << group.rank() << " saw no drift";
      } catch (const DistributedError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("'" + state[drifting].first + "'"), std::string::npos) << text;
        EXPECT_NE(text.find("{0, 1}"), std::string::npos) << text;
        EXPECT_NE(text.find("ranks {2} something else"), std::string::npos) << text;
        EXPECT_NE(text.find("after step 4"), std::string::npos) << text;
      }
    });
}

TEST(ReplicaCheckOverThreads, RefusesDifferentNumbersOfTensors) {
  run_ranks(2, [](const ProcessGroup& group) {
    StateDict state = state_of_a_rank();
    if (group.rank() == 0) state.pop_back();
    EXPECT_THROW(check_replicas(state, group), DistributedError);
  });
}

TEST(ReplicaCheckOverThreads, ATensorThatOneRankCannotReadIsAnErrorOnAll) {
  for (const int bad : {0, 1})
    run_ranks(2, [&](const ProcessGroup& group) {
      StateDict state = state_of_a_rank();
      if (group.rank() == bad) state[1].second = {};
      EXPECT_THROW(check_replicas(state, group), DistributedError);
    });
}

}  // namespace
}  // namespace tutti
