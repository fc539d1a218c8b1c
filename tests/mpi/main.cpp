// The main program of the MPI tests: every process runs the same tests on the same world. Rank 0
// prints as usual, the others print only failures; the run fails if any rank fails.
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>

#include <cstdio>

namespace {

class OnlyFailures : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", tutti::distributed::world().rank(),
                   result.file_name(), result.line_number(), result.message());
  }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tutti::set_num_threads(1);
  const tutti::ProcessGroup group = tutti::ProcessGroup::from_environment(std::chrono::seconds(60));
  if (group.rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new OnlyFailures);
  }
  const int failed = RUN_ALL_TESTS();
  const tutti::Tensor any = tutti::full({1}, failed);
  group.all_reduce(any, tutti::distributed::ReduceOp::max, {.name = "the tests' verdict"}).wait();
  return any.item<int>();
}
