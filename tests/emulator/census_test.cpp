// Tests the census of census.h in processes of their own, because a process that counts runs no
// kernel any more.
#include "census.h"
#include "emulator_test.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace emulator_test {
namespace {

namespace census = emulator::census;

// Ends the process if something is not as it should be, and says what.
void expect(bool is_right, const std::string& what) {
  if (is_right) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::_Exit(1);
}

void read_nothing(census::Call& launch, void**) { launch.bytes = 12; }

void count_in_60_gigabytes() {
  census::begin(census::a100);
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  expect(properties.multiProcessorCount == 108, "an A100 has 108 multiprocessors");
  const int elements = 1 << 30;
  float* x = nullptr;
  for (int block = 0; block < 15; ++block)
    expect(cudaMalloc(reinterpret_cast<void**>(&x), elements * sizeof(float)) == cudaSuccess,
           "the device has 60 GB");
  const int sent[] = {3, 4};
  int received[] = {1, 1};
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);

  census::start_recording(read_nothing);
  census::push_span("layer1");
  launch_add(x, elements, 1, stream);
  census::pop_span();
  cudaMemcpyAsync(x, sent, sizeof sent, cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(received, x, sizeof received, cudaMemcpyDeviceToHost, stream);
  const std::vector<census::Call> calls = census::stop_recording();

  expect(received[0] == 0 && received[1] == 0, "a copy to the host gives zeros");
  expect(calls.size() == 3, "three calls were recorded");
  expect(calls[0].kind == census::Kind::kernel && calls[0].bytes == 12, "the first is a kernel");
  expect(calls[0].name.find("::add(") != std::string::npos, calls[0].name);
  expect(calls[0].spans == std::vector<std::string>{"layer1"}, "it belongs to a layer");
  expect(calls[2].name == "copy to the host" && calls[2].bytes == 8, "the last is a copy");
  std::_Exit(0);
}

TEST(Census, RunsNothingAndTouchesNoDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(count_in_60_gigabytes(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace emulator_test
