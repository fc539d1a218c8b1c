// What happens when oneDNN finds no memory: an Error that names the operation, and no crash and no
// hang. Each case runs in a child process whose address space is limited.
#include "address_space.h"

#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/core/memory.h>
#include <tutti/core/parallel.h>
#include <tutti/nn/functional/conv.h>

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

namespace tutti {
namespace {

// Lets this process grow by `more` bytes at most, and leaves it no cache to give back.
void limit_memory(std::size_t more) {
  allocator(Device::cpu()).trim();
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limits{limit, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(2);
}

void lift_limit() {
  const rlimit limits{RLIM_INFINITY, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(3);
}

// Runs `compute` with `more` bytes to spare. Ends the process with 0 if that is an Error that
// begins with the name of the operation, and if the same call succeeds once there is memory again.
[[noreturn]] void expect_error_and_recovery(const std::string& op, std::size_t more,
                                            const std::function<void()>& compute) {
  alarm(60);  // ends a child that hangs
  limit_memory(more);
  try {
    compute();
    _exit(4);
  } catch (const Error& error) {
    if (std::string(error.what()).find(op + ": out of memory on cpu") != 0) {
      fmt::print(stderr, "expected {}: out of memory on cpu, got: {}\n", op, error.what());
      _exit(5);
    }
  }
  lift_limit();
  compute();
  _exit(0);
}

// Starts the helpers before memory is limited.
void start_threads() {
  set_num_threads(2);
  parallel_for(1 << 20, 1, [](std::int64_t, std::int64_t) {});
}

// The parameter is the instruction set that oneDNN may use; it is empty for all that there are. Up
// to AVX2, matrix products are oneDNN's GEMM.
class OutOfMemory : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (*test::no_memory_limit()) GTEST_SKIP() << test::no_memory_limit();
    // The child starts anew, with the instruction set that is asked for.
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    if (*GetParam()) setenv("DNNL_MAX_CPU_ISA", GetParam(), 1);
  }
  void TearDown() override { unsetenv("DNNL_MAX_CPU_ISA"); }
};

TEST_P(OutOfMemory, OfCodeForAMatrixProduct) {
  const auto multiply = [] {
    start_threads();
    const Tensor a = randn({256, 256}), b = randn({256, 256});
    expect_error_and_recovery("matmul", std::size_t{1} << 20, [&] { matmul(a, b); });
  };
  EXPECT_EXIT(multiply(), ::testing::ExitedWithCode(0), "");
}

// GEMM allocates buffers in each call. Where each of several threads asked for its own, those that
// got them would wait for the others without end.
TEST_P(OutOfMemory, OfBuffersLetsAProductThatHasRunBeforeComputeOrThrow) {
  const auto multiply = [] {
    start_threads();
    const Tensor a = randn({16, 20000}), b = randn({16, 20000}).transpose(0, 1);
    const std::vector<double> expected = to_vector(matmul(a, b));
    alarm(60);  // ends a child that hangs
    limit_memory(0);
    try {
      const Tensor out = matmul(a, b);
      lift_limit();
      _exit(to_vector(out) == expected ? 0 : 4);
    } catch (const OutOfMemoryError&) {
      lift_limit();
      _exit(to_vector(matmul(a, b)) == expected ? 0 : 5);
    }
  };
  EXPECT_EXIT(multiply(), ::testing::ExitedWithCode(0), "");
}

TEST_P(OutOfMemory, OfCodeForAConvolution) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const auto convolve = [&] {
      start_threads();
      const Tensor x = randn({2, 8, 12, 12}).contiguous(format), w = randn({8, 8, 3, 3});
      expect_error_and_recovery("convolution", std::size_t{1} << 20,
                                [&] { nn::convolution(x, w, {}, {}); });
    };
    EXPECT_EXIT(convolve(), ::testing::ExitedWithCode(0), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Processors, OutOfMemory, ::testing::Values("", "AVX2"),
                         [](const auto& each) {
                           return std::string(*each.param ? each.param : "This");
                         });

}  // namespace
}  // namespace tutti
