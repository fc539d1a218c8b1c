// Tests cuda::Graph: a replay repeats the captured work, on memory that the graph owns, and a
// capture names the operation that cannot be captured.
#include "../distributed/messages.h"
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/kernels/cuda/thread_state.h>

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <thread>

namespace tutti::graph_test {
namespace {

using test::test_device;

TensorOptions there() { return {float32, test_device()}; }

// Allocates, fills with NaN and frees memory of many sizes, so that memory that the graph does not
// own is overwritten.
void churn() {
  for (const std::int64_t n : {1, 3, 100, 128, 1000, 5000}) {
    std::vector<Tensor> taken;
    for (int i = 0; i < 6; ++i) taken.push_back(full({n}, NAN, there()));
  }
}

void expect_refusal(const std::function<void()>& step, const std::string& word) {
  test::expect_error<DeviceError>([&] { const cuda::Graph graph(test_device(), step); }, {word});
  EXPECT_EQ((ones({2}, there()) + 1).select(0, 1).item<int>(), 2) << "the device works on";
}

TEST(Graph, RepeatsItsWorkOnNewInputs) {
  const Tensor x = zeros({100}, there()), sum = zeros({100}, there());
  Tensor y;
  cuda::Graph graph(test_device(), [&] {
    y = exp(x * 2) + x;  // temporaries come and go
    sum.add_(y);
  });
  EXPECT_GT(graph.size(), 3u);
  EXPECT_EQ(to_vector(sum), std::vector<double>(100, 0.0))
      << "nothing runs before the first replay";
  const std::int64_t waits = cuda::synchronizations();
  Tensor expected, total = zeros({100});
  for (int step = 0; step < 3; ++step) {
    const Tensor input = randn({100});
    x.copy_(input.to(test_device()));
    graph.replay();
    churn();
    expected = exp(input * 2) + input;
    total.add_(expected);
  }
  EXPECT_EQ(cuda::synchronizations(), waits) << "a replay does not wait";
  const auto expect_near = [](const Tensor& got, const Tensor& want) {
    const auto a = to_vector(got), b = to_vector(want);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * (1 + std::abs(b[i])));
  };
  expect_near(y, expected);
  expect_near(sum, total);
}

TEST(Graph, KeepsWhatTheStepLetGo) {
  Tensor x = full({1000}, 3, there());
  const Tensor y = zeros({1000}, there());
  cuda::Graph graph(test_device(), [&] {
    y.copy_(x * 2);
    x = {};
  });
  churn();
  graph.replay();
  EXPECT_EQ(to_vector(y), std::vector<double>(1000, 6.0));
}

TEST(Graph, LetsGoOfWhatAnotherMade) {
  const Tensor x = ones({1000}, there()), y = zeros({1000}, there());
  Tensor made;
  std::optional<cuda::Graph> first;
  first.emplace(test_device(), [&] { made = x * 2; });
  first->replay();
  cuda::Graph second(test_device(), [&] {
    y.copy_(made + 1);
    made = {};
  });
  first.reset();  // the memory that the second graph reads must stay
  churn();
  second.replay();
  EXPECT_EQ(to_vector(y), std::vector<double>(1000, 3.0));
}

TEST(Graph, ResultsMayOutliveIt) {
  const std::size_t live = allocator(test_device()).stats().live;
  {
    const Tensor x = full({1000}, 3, there());
    Tensor y;
    {
      cuda::Graph graph(test_device(), [&] { y = x + 1; });
      graph.replay();
      cuda::Graph moved = std::move(graph);
      moved.replay();
    }
    churn();
    EXPECT_EQ(to_vector(y), std::vector<double>(1000, 4.0));
  }
  EXPECT_EQ(allocator(test_device()).stats().live, live);
}

TEST(Graph, RecordsStreamsThatAreTiedToIt) {
  const int device = test_device().index();
  const cuda::Stream side = cuda::Stream::create(device);
  const Tensor x = full({1000}, 3, there()), y = zeros({1000}, there());
  const auto step = [&](bool join) {
    side.wait(cuda::current_stream(device));
    {
      const cuda::StreamScope scope(side);
      y.copy_(x);
    }
    if (join) cuda::current_stream(device).wait(side);
  };
  cuda::Graph graph(test_device(), [&] { step(true); });
  graph.replay();
  EXPECT_EQ(to_vector(y), std::vector<double>(1000, 3.0));
  expect_refusal([&] { step(false); }, "another stream");
}

TEST(Graph, SaysThatTheStepHasToRunOnTheCapturingThreadFirst) {
  struct Handle {
    explicit Handle(int) {}
  };
  const auto step = [] { kernels::cuda::thread_state<Handle>(test_device().index()); };
  expect_refusal(step, "same thread");
  step();
  const cuda::Graph graph(test_device(), step);
  std::jthread([&] { expect_refusal(step, "same thread"); });
}

TEST(Graph, SaysWhatCannotBeRecorded) {
  const Tensor x = full({10}, 3, there()), host = ones({10});
  expect_refusal([&] { x.select(0, 3).item<float>(); }, "copy to the host");
  expect_refusal([&] { static_cast<void>(host.to(test_device())); }, "from the host");
  expect_refusal([&] { const cuda::Graph graph(test_device(), [] {}); }, "already");
  EXPECT_THROW(cuda::Graph(test_device(), [] { fail<ValueError>("my own"); }), ValueError);
  EXPECT_THROW(cuda::Graph(Device::cpu(), [] {}), DeviceError);
}

}  // namespace
}  // namespace tutti::graph_test
