// Tests of the ends and the children of processes that compute: a child of a fork computes what its
// parent does, and a process ends quietly while other threads compute.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/distributed/agreement.h>
#include <tutti/nn/functional/conv.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include "distributed/process.h"
#include "which_sanitizer.h"

#include <gtest/gtest.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

namespace tutti {
namespace {

class Process : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::under_thread_sanitizer) GTEST_SKIP() << "no child may start threads";
  }
};

// Returns results and gradients of loops, convolutions and products, all with several threads.
std::vector<double> compute() {
  manual_seed(1);
  const Tensor x = rand({4, 3, 32, 32}).requires_grad_(), w = rand({8, 3, 3, 3}).requires_grad_(),
               a = rand({300, 200}), b = rand({200, 100});
  const Tensor y = nn::convolution(x, w, {}, {.stride = {1, 1}, .padding = {1, 1}});
  sum(square(y)).backward();
  std::vector<double> all = to_vector(sum(rand({1'000'000})));
  for (const Tensor& each : {y.detach(), x.grad(), w.grad(), matmul(a, b)})
    for (const double value : to_vector(each)) all.push_back(value);
  return all;
}

TEST_F(Process, AChildOfAForkComputesWhatItsParentDoes) {
  const int before = num_threads();
  set_num_threads(2);
  const std::vector<double> expected = compute();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that hangs
    bool is_right = compute() == expected;
    set_num_threads(2);
    std::thread([&] {
      set_num_threads(2);
      is_right = is_right && compute() == expected;
    }).join();
    std::exit(is_right && compute() == expected ? 0 : 1);
  }
  test::expect_exit(child, 0);
  EXPECT_EQ(compute(), expected);
  set_num_threads(before);
}

// What the other threads compute, for ever.
void convolve_in_new_shapes(int i) {
  nn::convolution(rand({2, 3, 4 + i % 40, 16}), rand({4, 3, 3, 3}), {},
                  {.stride = {1, 1}, .padding = {1, 1}});
}
void convolve(int) { convolve_in_new_shapes(0); }
void multiply(int i) { matmul(rand({20 + i % 200, 70}), rand({70, 90})); }
void train(int) {
  nn::ResNet net({.depth = 20, .classes = 3});
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  sum(square(net(rand({2, 3, 8, 8})))).backward();
  sgd.step();
}
void reduce(int i) {
  sum(rand({100'000}));
  (void)softmax(rand({10, 5 + i % 9}), 1).to_string();
}

// Ends a process `milliseconds` after two threads have begun to compute.
[[noreturn]] void exit_while_computing(const std::function<void(int)>& step, int milliseconds) {
  alarm(60);
  static std::atomic<int> steps{0};
  for (int t = 0; t < 2; ++t)
    std::thread([step] {
      set_num_threads(2);
      for (int i = 0;; ++i, ++steps) step(i);
    }).detach();
  while (steps == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  std::exit(7);
}

TEST_F(Process, EndsQuietlyWhileOtherThreadsCompute) {
  for (const auto& step : {convolve, convolve_in_new_shapes, multiply, train, reduce})
    for (int run = 0; run < 10 && !HasFailure(); ++run) {
      std::fflush(nullptr);
      const pid_t child = fork();
      if (child == 0) exit_while_computing(step, run);
      test::expect_exit(child, 7);
    }
}

// The end of a static object waits for a thread that computes: it may finish what it has begun.
TEST_F(Process, AThreadThatIsJoinedAtExitFinishes) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    set_num_threads(1);  // as the thread below
    convolve(0);         // constructs what the exit destroys after the thread below has ended
    static std::atomic<bool> stop{false};
    struct Joined {
      std::thread thread;
      ~Joined() {
        stop = true;
        thread.join();
      }
    };
    static Joined joined{std::thread([] {
      convolve(0);
      while (!stop) std::this_thread::yield();
      for (int i = 0; i < 20; ++i) convolve(0);
    })};
    std::exit(7);
  }
  test::expect_exit(child, 7);
}

// What an object of a thread or of static duration computes in its destructor: convolutions,
// products, loops, random numbers and gradients.
struct ComputesAtTheEnd {
  std::atomic<bool>* is_right;
  ~ComputesAtTheEnd() {
#ifdef __SANITIZE_ADDRESS__  // what a thread makes so late is never destroyed (core/thread_owned.h)
    const __lsan::ScopedDisabler no_leaks;
#endif
    const bool is_equal = compute() == expected;
    if (is_right) *is_right = is_equal;
    else if (!is_equal) std::_Exit(1);
  }
  std::vector<double> expected;
};

TEST_F(Process, AnObjectOfAThreadComputesInItsDestructor) {
  const int before = num_threads();
  for (const int threads : {1, 2}) {
    std::atomic<bool> is_right{false};
    std::thread([&] {
      set_num_threads(threads);
      static thread_local ComputesAtTheEnd object{&is_right, {}};  // ends after what is made later
      object.expected = compute();
    }).join();
    EXPECT_TRUE(is_right);
  }
  set_num_threads(before);
}

// The reference kernels compute then, whose last bits are others.
TEST_F(Process, AStaticObjectComputesInItsDestructor) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    struct Computes {
      double expected = 0;
      ~Computes() {
        convolve(0);
        if (sum(matmul(full({90, 80}, 0.5), ones({80, 70}))).item<double>() != expected)
          std::_Exit(1);
      }
    };
    static Computes early;  // ends after all that computing makes
    early.expected = sum(matmul(full({90, 80}, 0.5), ones({80, 70}))).item<double>();
    convolve(0);
    std::exit(7);
  }
  test::expect_exit(child, 7);
}

// oneDNN's generated code keeps its stack pointer in the heap for a while. The handler must not
// write there.
TEST_F(Process, SignalsDuringAProductLeaveTheHeapAlone) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    set_num_threads(2);
    const Tensor a = rand({150, 300}), b = rand({300, 150});
    const std::vector<double> expected = to_vector(matmul(a, b));
    distributed::catch_stop_signals();
    std::atomic<bool> stop{false};
    std::thread storm([&] {
      while (!stop) ::kill(::getpid(), SIGHUP);  // a second SIGTERM would end the process
    });
    bool is_right = true;
    for (int i = 0; i < 2000 && is_right; ++i) is_right = to_vector(matmul(a, b)) == expected;
    stop = true;
    storm.join();
    std::exit(is_right ? 0 : 1);
  }
  test::expect_exit(child, 0);
}

}  // namespace
}  // namespace tutti
