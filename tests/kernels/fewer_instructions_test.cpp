// The kernels that oneDNN takes on processors with fewer instructions than this one. A variable,
// which oneDNN reads once, keeps the others off, so the tests run in programs of their own.
#include "distributed/process.h"

#include <gtest/gtest.h>

namespace tutti::fewer_instructions_test {
namespace {

class FewerInstructions : public testing::TestWithParam<const char*> {};

TEST_P(FewerInstructions, ProductsAndConvolutionsAreRight) {
  const std::string set = GetParam();
#ifdef __x86_64__
  if (!(set == "AVX2" ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("avx512bw")))
    GTEST_SKIP() << "this processor has no " << set;
#else
  GTEST_SKIP() << "the variable names instructions of x86-64";
#endif
  test::Process child(
      {"/proc/self/exe", "--gtest_brief=1", "--gtest_filter=Matmul.*:Convolution.*:Convolution/*"},
      {"DNNL_MAX_CPU_ISA=" + set});
  const std::string output = child.rest();
  EXPECT_EQ(child.exit_code(), 0) << output;
}

INSTANTIATE_TEST_SUITE_P(Processors, FewerInstructions, testing::Values("AVX2", "AVX512_CORE"));

}  // namespace
}  // namespace tutti::fewer_instructions_test
