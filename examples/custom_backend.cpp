// Writes a backend for process groups outside of the library: SlowNetwork passes every collective
// on to another backend and delays its end, as a network with a given latency and bandwidth would.
// The program checks a sum and its delay, and then trains two steps on two ranks that are threads,
// without the network and with it.
#include <tutti/tutti.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
using namespace tutti;

// [snippet]
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// What the network costs: a collective takes the latency plus its bytes at this rate.
struct Network {
  Seconds latency;
  double bytes_per_second;
};

// A collective that is done when the other backend has finished it and the time of its arrival has
// come. For a backend whose wait() leaves the waiting to a device (NCCL) this class is wrong.
struct DelayedWork : distributed::WorkState {
  DelayedWork(std::shared_ptr<distributed::WorkState> work, Clock::time_point arrival)
      : inner(std::move(work)), arrives_at(arrival) {}
  void wait() override {
    inner->wait();  // throws where the group has failed
    std::this_thread::sleep_until(arrives_at);
  }
  bool is_done() override { return inner->is_done() && Clock::now() >= arrives_at; }
  Clock::time_point done_at() const override { return std::max(inner->done_at(), arrives_at); }

  std::shared_ptr<distributed::WorkState> inner;
  Clock::time_point arrives_at;
};

// Failures and deadlines are those of the other backend.
class SlowNetwork : public distributed::Backend {
 public:
  SlowNetwork(std::shared_ptr<Backend> inner, Network network)
      : Backend(inner), inner_(std::move(inner)), network_(network) {}

  std::shared_ptr<distributed::WorkState> submit(const distributed::Collective& call) override {
    const Seconds duration = network_.latency +
                             Seconds(static_cast<double>(call.bytes()) / network_.bytes_per_second);
    const auto arrival = Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
    return std::make_shared<DelayedWork>(inner_->submit(call), arrival);
  }
  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override {
    return std::make_shared<SlowNetwork>(inner_->subgroup(members, name), network_);
  }

 private:
  std::shared_ptr<Backend> inner_;
  Network network_;
};
// [/snippet]

// Trains two steps and returns how long they took.
Seconds train(const ProcessGroup& group) {
  nn::Sequential net;
  net.append<nn::Linear>({.in = 8, .out = 64});
  net.append<nn::SyncBatchNorm>({.channels = 64, .group = group});
  net.append<nn::Linear>({.in = 64, .out = 1});
  DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  const auto start = Clock::now();
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    mean(square(net(randn({32, 8})))).backward();
    sgd.step();
  }
  return Clock::now() - start;
}

int main() {
  const Network network{.latency = std::chrono::milliseconds(20), .bytes_per_second = 100e6};
  bool passed = true;  // written by rank 0 only
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    const ProcessGroup slow(std::make_shared<SlowNetwork>(group.implementation(), network));

    const auto start = Clock::now();
    const Tensor ranks = full({1000}, group.rank() + 1);
    slow.all_reduce(ranks).wait();
    const Seconds took = Clock::now() - start;

    const Seconds fast_steps = train(group), slow_steps = train(slow);
    if (group.rank() != 0) return;
    passed = to_vector(ranks) == std::vector<double>(1000, 3) && took >= network.latency;
    std::printf("all_reduce of 4 kB: %.1f ms\n", 1e3 * took.count());
    std::printf("two steps: %.1f ms, over the slow network %.1f ms\n", 1e3 * fast_steps.count(),
                1e3 * slow_steps.count());
  });
  std::printf("%s\n", passed ? "passed" : "the sum or the delay is wrong");
  return passed ? 0 : 1;
}
