// Tests the emulator: right kernels and host code give right results, and mistakes are found.
#include "emulator_test.h"

#include "buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace emulator_test {
namespace {

struct Stream {
  cudaStream_t handle;
  Stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

TEST(Kernels, ReduceWithShufflesAndTheLastBlock) {
  for (const int n : {0, 1, 31, 1000, 5000}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    std::iota(x.begin(), x.end(), 1.0f);
    const Buffer<float> in(x), partial(7), result(1);
    const Buffer<unsigned> counter(std::vector<unsigned>{0});
    for (int repeat = 0; repeat < 3; ++repeat) {
      launch_sum({.blocks = 7, .threads = 96}, in.get(), n, partial.get(), counter.get(),
                 result.get());
      EXPECT_EQ(result.values()[0], std::accumulate(x.begin(), x.end(), 0.0f));
    }
    EXPECT_EQ(counter.values()[0], 0u) << "the last block resets it";
  }
}

TEST(Kernels, EveryBlockHasSharedMemoryOfItsOwnUpToItsLimit) {
  const Buffer<float> results(8);
  launch_block_numbers({.blocks = 8, .threads = 48, .shared_bytes = 64}, results.get());
  for (int b = 0; b < 8; ++b)
    EXPECT_EQ(results.values()[static_cast<std::size_t>(b)], 1001.0f * static_cast<float>(b + 1));
  EXPECT_THROW(launch_block_numbers({.shared_bytes = (48 << 10) + 1}, results.get()),
               std::runtime_error);
}

TEST(Kernels, ShufflesFindTheirLanes) {
  const Buffer<int> up(32), down(32), from(32), halves(32);
  const Buffer<unsigned> votes(32);
  launch_shuffles(up.get(), down.get(), from.get(), halves.get(), votes.get());
  for (int i = 0; i < 32; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(up.values()[at], i == 0 ? 0 : i - 1);
    EXPECT_EQ(down.values()[at], i == 31 ? 31 : i + 1);
    EXPECT_EQ(from.values()[at], 5);
    EXPECT_EQ(halves.values()[at], i < 16 ? i : i - 16)
        << "beyond a thread's group: a later one keeps its own";
    EXPECT_EQ(votes.values()[at], 0x49249249u);
  }
}

TEST(Mistakes, ABarrierThatNotAllThreadsReach) {
  launch_divergent(64, 64);
  cudaDeviceSynchronize();
  EXPECT_DEATH(
      launch_divergent(64, 50),
      "not all threads reach(.|\n)*14 threads returned(.|\n)*50 threads wait at __syncthreads");
  EXPECT_DEATH(launch_two_barriers(), "divergent barrier");
}

TEST(Mistakes, AMissingBarrierGivesWrongResults) {
  std::vector<int> x(128);
  std::iota(x.begin(), x.end(), 0);
  const Buffer<int> with(x), without(x);
  launch_reverse(with.get(), true);
  launch_reverse(without.get(), false);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(with.values()[i], 127 - static_cast<int>(i));
  EXPECT_NE(with.values(), without.values());
}

TEST(Mistakes, SharedMemoryIsNotInitialised) {
  const Buffer<float> y(1);
  launch_read_shared(y.get(), true);
  EXPECT_EQ(y.values()[0], 1);
  launch_read_shared(y.get(), false);
  EXPECT_TRUE(std::isnan(y.values()[0])) << "nor does it keep what the last block left";
}

TEST(Mistakes, DeviceMemoryIsNotInitialised) {
  for (const float x : Buffer<float>(10).values()) EXPECT_TRUE(std::isnan(x));
}

TEST(Mistakes, WritesPastTheEnd) {
  EXPECT_DEATH(
      {
        const Buffer<float> x(10);
        launch_add(x.get(), 11, 1e30f, nullptr);
      },
      "1 bytes past the end of a block of 40 bytes|AddressSanitizer: use-after-poison");
}

TEST(Mistakes, AVectorAtAnAddressThatIsNoMultipleOfItsSize) {
  const Buffer<float> x(std::vector<float>{1, 2, 3, 4, 5}), y(1);
  launch_load_vector(x.get(), y.get());
  EXPECT_EQ(y.values()[0], 10);
  EXPECT_DEATH(
      {
        launch_load_vector(x.get() + 1, y.get());
        y.values();
      },
      "misaligned address");
}

TEST(Mistakes, HostCodeTouchesDeviceMemory) {
  const Buffer<float> x(std::vector<float>{1, 2});
  EXPECT_DEATH(
      {
        if (*static_cast<volatile float*>(x.get()) == 1) std::exit(0);
      },
      "host code touches device memory|AddressSanitizer: SEGV");
  float host[2] = {0, 0};
  EXPECT_DEATH(cudaMemcpy(x.get(), x.get() + 1, sizeof(float), cudaMemcpyDeviceToHost),
               "an address in device memory");
  EXPECT_DEATH(cudaMemcpy(host, x.get() + 1, 2 * sizeof(float), cudaMemcpyDeviceToHost),
               "do not lie in one block");
}

// One stream adds to numbers that another one copies. Only an event between them makes the result
// certain.
float add_on_one_stream_and_read_on_another(bool ordered) {
  const Buffer<float> x(std::vector<float>(100, 1.0f));
  const Stream first, second;
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  void* host;
  cudaHostAlloc(&host, sizeof(float), 0);
  for (int i = 0; i < 10; ++i) launch_add(x.get(), 100, 1, first.handle);
  cudaEventRecord(event, first.handle);
  if (ordered) cudaStreamWaitEvent(second.handle, event, 0);
  cudaMemcpyAsync(host, x.get() + 99, sizeof(float), cudaMemcpyDeviceToHost, second.handle);
  cudaStreamSynchronize(second.handle);
  const float seen = *static_cast<float*>(host);
  cudaStreamSynchronize(first.handle);
  cudaFreeHost(host);
  cudaEventDestroy(event);
  return seen;
}

TEST(Streams, OnlyEventsOrderThem) {
  int early = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(add_on_one_stream_and_read_on_another(true), 11);
    early += add_on_one_stream_and_read_on_another(false) < 11;
  }
  EXPECT_GT(early, 3) << "a missing event is seen";
}

TEST(Streams, MemoryIsFreedInTheirOrder) {
  const Stream a, b;
  float* x;
  float host = 0;
  cudaMallocAsync(reinterpret_cast<void**>(&x), 40, a.handle);
  cudaMemsetAsync(x, 0, 40, a.handle);
  launch_add(x, 10, 3, a.handle);
  cudaMemcpyAsync(&host, x + 9, sizeof(float), cudaMemcpyDeviceToHost, a.handle);
  cudaFreeAsync(x, a.handle);
  EXPECT_EQ(host, 3) << "a copy to pageable memory is complete on return";
  EXPECT_EQ(cudaStreamSynchronize(a.handle), cudaSuccess);
  EXPECT_DEATH(cudaMemcpyAsync(&host, x, 4, cudaMemcpyDeviceToHost, b.handle),
               "do not lie in one block");
}

TEST(Graphs, AreCapturedOverStreamsAndReplayed) {
  const Buffer<float> x(std::vector<float>(50, 0.0f));
  const Stream first, second;
  cudaEvent_t forth, back;
  cudaEventCreateWithFlags(&forth, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&back, cudaEventDisableTiming);
  const auto capture = [&](bool join, bool synchronize) {
    cudaGraph_t graph;
    cudaStreamBeginCapture(first.handle, cudaStreamCaptureModeThreadLocal);
    launch_add(x.get(), 50, 1, first.handle);
    cudaEventRecord(forth, first.handle);
    cudaStreamWaitEvent(second.handle, forth, 0);
    launch_add(x.get(), 50, 10, second.handle);
    cudaEventRecord(back, second.handle);
    if (join) cudaStreamWaitEvent(first.handle, back, 0);
    if (synchronize) {
      EXPECT_EQ(cudaStreamSynchronize(first.handle), cudaErrorStreamCaptureUnsupported);
    }
    const cudaError_t status = cudaStreamEndCapture(first.handle, &graph);
    if (status == cudaSuccess) {
      cudaGraphExec_t executable;
      cudaGraphInstantiate(&executable, graph, 0);
      for (int i = 0; i < 3; ++i) cudaGraphLaunch(executable, first.handle);
      cudaStreamSynchronize(first.handle);
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
    cudaGetLastError();
    return status;
  };
  EXPECT_EQ(capture(true, false), cudaSuccess);
  EXPECT_EQ(x.values()[49], 33) << "what is captured does not run, what is launched does";
  EXPECT_EQ(capture(false, false), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(capture(true, true), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(x.values()[49], 33);
  cudaEventDestroy(forth);
  cudaEventDestroy(back);
}

// One stream clears and increments numbers that another one copies. Returns how many of 20 replays
// give a wrong copy.
int wrong_replays(bool edge) {
  const Buffer<float> x(50), y(50);
  const Stream first, second;
  cudaEvent_t forth, back;
  cudaEventCreateWithFlags(&forth, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&back, cudaEventDisableTiming);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(first.handle, cudaStreamCaptureModeThreadLocal);
  if (!edge) cudaEventRecord(forth, first.handle);
  cudaMemsetAsync(x.get(), 0, 50 * sizeof(float), first.handle);
  launch_add(x.get(), 50, 1, first.handle);
  if (edge) cudaEventRecord(forth, first.handle);
  cudaStreamWaitEvent(second.handle, forth, 0);
  cudaMemcpyAsync(y.get(), x.get(), 50 * sizeof(float), cudaMemcpyDeviceToDevice, second.handle);
  cudaEventRecord(back, second.handle);
  cudaStreamWaitEvent(first.handle, back, 0);
  EXPECT_EQ(cudaStreamEndCapture(first.handle, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  int wrong = 0;
  for (int i = 0; i < 20; ++i) {
    cudaMemsetAsync(x.get(), 0, 50 * sizeof(float), first.handle);
    cudaGraphLaunch(executable, first.handle);
    cudaStreamSynchronize(first.handle);
    wrong += y.values()[49] != 1;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(forth);
  cudaEventDestroy(back);
  return wrong;
}

TEST(Graphs, AMissingEdgeIsAWrongResult) {
  EXPECT_EQ(wrong_replays(true), 0);
  EXPECT_GT(wrong_replays(false), 3);
}

// Returns how a capture ends in whose middle this thread, or another one, makes a call.
cudaError_t end_after(cudaStreamCaptureMode mode, bool other_thread,
                      const std::function<cudaError_t()>& call, cudaError_t expected) {
  const Stream stream;
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream.handle, mode), cudaSuccess);
  if (other_thread) std::thread([&] { EXPECT_EQ(call(), expected); }).join();
  else EXPECT_EQ(call(), expected);
  const cudaError_t end = cudaStreamEndCapture(stream.handle, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
  return end;
}

TEST(Graphs, ACaptureRefusesWhatItsModeForbids) {
  const Buffer<float> x(4);
  const Stream idle;
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, idle.handle);
  cudaStreamSynchronize(idle.handle);
  float host = 0;
  void* block = nullptr;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaEventQuery(event); },
      [&] { return cudaStreamQuery(idle.handle); },
      [&] { return cudaMalloc(&block, 16); },
      [&] { return cudaHostAlloc(&block, 16, 0); },
      [&] { return cudaMallocAsync(&block, 16, idle.handle); },
      [&] { return cudaMemcpy(x.get(), &host, 4, cudaMemcpyHostToDevice); }};
  for (const auto& call : calls) {
    const auto refused = cudaErrorStreamCaptureUnsupported,
               broken = cudaErrorStreamCaptureInvalidated;
    EXPECT_EQ(end_after(cudaStreamCaptureModeGlobal, false, call, refused), broken);
    EXPECT_EQ(end_after(cudaStreamCaptureModeGlobal, true, call, refused), broken);
    EXPECT_EQ(end_after(cudaStreamCaptureModeThreadLocal, false, call, refused), broken);
    EXPECT_EQ(block, nullptr);
  }
  const auto query = calls[0];
  EXPECT_EQ(end_after(cudaStreamCaptureModeThreadLocal, true, query, cudaSuccess), cudaSuccess);
  EXPECT_EQ(end_after(cudaStreamCaptureModeRelaxed, false, query, cudaSuccess), cudaSuccess);
  const auto relaxed = [&] {
    auto mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    const cudaError_t status = query();
    cudaThreadExchangeStreamCaptureMode(&mode);
    return status;
  };
  EXPECT_EQ(end_after(cudaStreamCaptureModeGlobal, false, relaxed, cudaSuccess), cudaSuccess);
  EXPECT_EQ(end_after(cudaStreamCaptureModeGlobal, true, relaxed, cudaSuccess), cudaSuccess);
  cudaEventDestroy(event);
}

TEST(Graphs, NoModeAllowsWhatConflictsWithTheCapture) {
  const Buffer<float> x(4);
  const Stream stream;
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  float host = 0;
  const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, sizeof(float), kind, stream.handle);
  };
  const std::pair<std::function<cudaError_t()>, cudaError_t> calls[] = {
      {[&] { return copy(x.get(), &host, cudaMemcpyHostToDevice); },
       cudaErrorStreamCaptureUnsupported},
      {[&] { return copy(&host, x.get(), cudaMemcpyDeviceToHost); },
       cudaErrorStreamCaptureUnsupported},
      {[] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaStreamQuery(stream.handle); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaEventRecord(event, stream.handle), cudaEventQuery(event); },
       cudaErrorCapturedEvent}};
  for (const auto& [call, expected] : calls) {
    cudaGraph_t graph;
    cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeRelaxed);
    EXPECT_EQ(call(), expected);
    EXPECT_EQ(cudaStreamEndCapture(stream.handle, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
  }
  cudaEventDestroy(event);
}

}  // namespace
}  // namespace emulator_test
