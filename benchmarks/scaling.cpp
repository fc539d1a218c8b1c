// Measures what a training step costs on n ranks. The program measures the parameters of the model
// in docs/scaling.md (compute, latency and bandwidth of the collectives), predicts from them the
// step of a ResNet-20 with SyncBatchNorm and gradient buckets, here and on more ranks, and measures
// that step, too. Then it measures whether a large all-reduce overlaps with compute. Run it under a
// launcher: mpirun -n 2 scaling
#include "timing.h"

#include <fmt/format.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/resnet.h>
#include <tutti/optim/sgd.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <thread>

namespace tutti::benchmarks {
namespace {

constexpr std::int64_t local_batch = 32;
constexpr int warm_up = 3, all_steps = warm_up + 15;

// The time of a collective: latency + per_byte * bytes, in seconds.
struct Line {
  double latency = 0, per_byte = 0;
};

// Fits a line by least squares of the relative errors; with absolute ones the large sizes would
// decide alone.
Line fit(const std::vector<double>& bytes, const std::vector<double>& seconds) {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const double weight = 1 / (seconds[i] * seconds[i]);
    w += weight;
    x += weight * bytes[i];
    y += weight * seconds[i];
    xx += weight * bytes[i] * bytes[i];
    xy += weight * bytes[i] * seconds[i];
  }
  const double slope = (w * xy - x * y) / (w * xx - x * x);
  const double latency = (y - slope * x) / w;
  return latency > 0 ? Line{latency, slope} : Line{0, xy / xx};
}

// The model of docs/scaling.md.
class Model {
 public:
  Model(int ranks, const Line& small, const Line& large)
      : cores_(static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN))) {
    // A small all-reduce sends n - 1 messages with all of the data. A large one sends 3 (n - 1)
    // messages (fingerprints, scatter, gather) and 2 (n - 1) / n of the data.
    const double peers = ranks - 1;
    small_ = {small.latency / peers, small.per_byte / peers};
    large_ = {large.latency / (3 * peers), large.per_byte * ranks / (2 * peers)};
  }
  double flat(double ranks, double bytes) const {
    return (ranks - 1) * (small_.latency + small_.per_byte * bytes);
  }
  double tree(double ranks, double bytes) const {
    return std::ceil(std::log2(ranks)) * (small_.latency + small_.per_byte * bytes);
  }
  double large(double ranks, double bytes) const {
    return 3 * (ranks - 1) * large_.latency + 2 * (ranks - 1) / ranks * large_.per_byte * bytes;
  }
  // Returns the time of the algorithm that the MPI backend chooses.
  double all_reduce(double ranks, double bytes) const {
    return bytes <= static_cast<double>(distributed::mpi::inline_limit(static_cast<int>(ranks)))
               ? flat(ranks, bytes)
               : large(ranks, bytes);
  }
  // Returns how many ranks share a core of this host.
  double sharing(double ranks) const { return std::max(1.0, ranks / cores_); }
  std::string parameters() const {
    return fmt::format(
        "small: {:.1f} us + {:.3f} ns/byte a message; large: {:.1f} us a message, {:.3f} ns/byte",
        1e6 * small_.latency, 1e9 * small_.per_byte, 1e6 * large_.latency, 1e9 * large_.per_byte);
  }

 private:
  Line small_, large_;  // of one message
  double cores_;
};

// Returns the time of one all-reduce among many in a row, in the best of several rounds. The
// collectives themselves keep the ranks together.
double all_reduce_seconds(const ProcessGroup& group, std::int64_t bytes, int calls) {
  const Tensor data = zeros({bytes / 8}, {.dtype = float64});
  std::vector<double> times;
  for (int round = 0; round < 15; ++round) {
    group.barrier();
    times.push_back(seconds_of([&] {
                      for (int i = 0; i < calls; ++i) group.all_reduce(data).wait();
                    }) /
                    calls);
  }
  return *std::min_element(times.begin(), times.end());
}

// A training step of a ResNet-20 whose norms and gradients are synchronized over a group.
struct Step {
  nn::ResNet net{{.depth = 20, .channels = 1}};
  distributed::DataParallel ddp;
  optim::SGD sgd;
  Tensor images = randn({local_batch, 1, 28, 28}).contiguous(MemoryFormat::channels_last),
         labels = randint(10, {local_batch});

  explicit Step(const ProcessGroup& group)
      : ddp((net.to(MemoryFormat::channels_last), net.named_parameters()), net.named_buffers(),
            group),
        sgd(net.parameters(), {.lr = 0.01, .momentum = 0.9}) {
    for (nn::BatchNorm* norm : norms()) norm->set_process_group(group);
  }
  std::vector<nn::BatchNorm*> norms() {
    std::vector<nn::BatchNorm*> all;
    for (const auto& [name, module] : net.named_modules())
      if (auto* norm = dynamic_cast<nn::BatchNorm*>(module)) all.push_back(norm);
    return all;
  }
  void operator()() {
    sgd.zero_grad();
    nn::cross_entropy(net(images), labels).backward();
    sgd.step();
  }
};

// Returns the median times of the two steps, which take turns, on the slowest rank. `aside` keeps
// the ranks together between steps.
std::pair<double, double> step_seconds(Step& alone, Step& together, const ProcessGroup& aside) {
  std::vector<double> times[2];
  for (int i = 0; i < all_steps; ++i)
    for (Step* step : {&alone, &together}) {
      aside.barrier();
      const double seconds = seconds_of([&] { (*step)(); });
      if (i >= warm_up) times[step == &together].push_back(seconds);
    }
  const Tensor slowest = tensor({median(times[0]), median(times[1])}, {.dtype = float64});
  aside.all_reduce(slowest, distributed::ReduceOp::max).wait();
  return {slowest.data<double>()[0], slowest.data<double>()[1]};
}

// Measures compute and a 25 MiB all-reduce, each alone and both at once. Then it measures an
// all-reduce to which the other ranks come late: there compute hides waiting, which needs no core.
void measure_overlap(const ProcessGroup& group) {
  const Tensor bucket = zeros({25 * 1024 * 1024 / 4}), a = randn({256, 256}), b = randn({256, 256});
  int products = 1;
  const auto compute = [&] {
    for (int i = 0; i < products; ++i) matmul(a, b);
  };
  const auto communicate = [&] { group.all_reduce(bucket).wait(); };
  const auto both = [&] {
    distributed::Work work = group.all_reduce(bucket);
    compute();
    work.wait();
  };
  for (int i = 0; i < 3; ++i) communicate();
  // Compute takes as long as the all-reduce, and is the same on every rank.
  const Tensor ratio = full({},
                            seconds_of(communicate) / (seconds_of([&] {
                                                         products = 20;
                                                         compute();
                                                       }) /
                                                       20),
                            {.dtype = float64});
  group.broadcast(ratio).wait();
  products = std::max(1, static_cast<int>(ratio.item<double>()));
  std::vector<double> alone, sent, together, waited, beside;
  for (int i = 0; i < 15; ++i) {
    group.barrier();
    alone.push_back(seconds_of(compute));
    group.barrier();
    sent.push_back(seconds_of(communicate));
    group.barrier();
    together.push_back(seconds_of(both));
    const auto late = [&](const auto& work) {
      group.barrier();
      if (group.rank() > 0)
        std::this_thread::sleep_for(std::chrono::duration<double>(median(alone)));
      return seconds_of(work);
    };
    waited.push_back(late(communicate));
    beside.push_back(late([&] {
      if (group.rank() == 0) both();
      else communicate();
    }));
  }
  if (group.rank() != 0) return;
  const double c = median(alone), s = median(sent), t = median(together);
  fmt::print(
      "overlap: compute {:.1f} ms, all-reduce of 25 MiB {:.1f} ms, both at once {:.1f} ms: {:.0f}% "
      "of the shorter one hidden\n",
      1e3 * c, 1e3 * s, 1e3 * t, 100 * (c + s - t) / std::min(c, s));
  const double late = median(waited), hidden = c + late - median(beside);
  fmt::print(
      "the others {:.1f} ms late: all-reduce {:.1f} ms, with that compute beside it {:.1f} ms: "
      "{:.0f}% of the compute hidden\n",
      1e3 * c, 1e3 * late, 1e3 * median(beside), 100 * hidden / c);
}

// Measures all-reduces of small and large sizes, prints their times, and fits the model.
Model measure_model(const ProcessGroup& group) {
  const bool first = group.rank() == 0;
  std::vector<double> sizes, small, large_sizes, large;
  for (const std::int64_t bytes : {64, 1024, 4096, 16384, 32768, 65536}) {
    if (bytes > static_cast<std::int64_t>(distributed::mpi::inline_limit(group.size()))) break;
    sizes.push_back(static_cast<double>(bytes));
    small.push_back(all_reduce_seconds(group, bytes, 200));
    if (first) fmt::print("all-reduce of {:8} B   {:10.1f} us\n", bytes, 1e6 * small.back());
  }
  for (const std::int64_t kib : {256, 1024, 4096, 16384}) {
    large_sizes.push_back(static_cast<double>(kib * 1024));
    large.push_back(all_reduce_seconds(group, kib * 1024, kib > 4000 ? 4 : 20));
    if (first) fmt::print("all-reduce of {:6} KiB {:10.1f} us\n", kib, 1e6 * large.back());
  }
  return Model(group.size(), fit(sizes, small), fit(large_sizes, large));
}

// The sizes in bytes of the collectives of one step.
struct Traffic {
  std::vector<double> statistics, buckets;
};

Traffic traffic_of(Step& step) {
  Traffic traffic;
  for (nn::BatchNorm* norm : step.norms())
    for (int pass = 0; pass < 2; ++pass)  // forward and backward
      traffic.statistics.push_back(8.0 * (2.0 * static_cast<double>(norm->options().channels) + 8));
  const StateDict parameters = step.net.named_parameters();
  for (const auto& names : step.ddp.buckets()) {
    double bytes = 0;
    for (const auto& [name, tensor] : parameters)
      if (std::find(names.begin(), names.end(), name) != names.end())
        bytes += 4.0 * static_cast<double>(tensor.numel());
    traffic.buckets.push_back(bytes);
  }
  return traffic;
}

template <class Cost>
double sum_over(const std::vector<double>& sizes, const Cost& cost) {
  double sum = 0;
  for (const double bytes : sizes) sum += cost(bytes);
  return sum;
}

// What was measured of a step on this number of ranks, in seconds.
struct Measured {
  double compute = 0, step = 0, waited = 0;
};

void print_this_world(const Model& model, const Traffic& traffic, int ranks,
                      const Measured& measured) {
  const double n = ranks;
  const double statistics =
      sum_over(traffic.statistics, [&](double bytes) { return model.all_reduce(n, bytes); });
  const double last = model.large(n, traffic.buckets.back());
  fmt::print("parameters at {} ranks: {}\n", ranks, model.parameters());
  fmt::print(
      "a step at {} ranks: compute {:.1f} ms, {} statistics {:.2f} ms, last of {} buckets {:.2f} "
      "ms: predicted {:.1f} ms, measured {:.1f} ms; held up in collectives for {:.1f} ms a step, "
      "mean of the ranks\n",
      ranks, 1e3 * measured.compute, traffic.statistics.size(), 1e3 * statistics,
      traffic.buckets.size(), 1e3 * last, 1e3 * (measured.compute + statistics + last),
      1e3 * measured.step, 1e3 * measured.waited);
}

// Prints the predictions. `compute` is that of a rank that has a core to itself.
void print_predictions(const Model& model, const Traffic& traffic, double compute) {
  fmt::print(
      "\nPredicted from these, ms; one rank to a core from 8 ranks on, one host's latencies\n"
      "| ranks | compute | statistics, n - 1 messages | statistics, log2 n messages | statistics "
      "in groups of 8 | buckets, not hidden | "
      "step, n - 1 messages | step, groups of 8 |\n| --- | --- | --- | --- | --- | --- | --- | "
      "--- |\n");
  for (const int ranks : {2, 4, 8, 16, 64, 256, 1024, 4096}) {
    const double c = compute * (ranks < 8 ? model.sharing(ranks) : 1), g = std::min(ranks, 8);
    const auto statistics = [&](double n) {
      return sum_over(traffic.statistics, [&](double bytes) { return model.all_reduce(n, bytes); });
    };
    const double flat = statistics(ranks), grouped = statistics(g);
    const double tree =
        sum_over(traffic.statistics, [&](double bytes) { return model.tree(ranks, bytes); });
    const double all =
        sum_over(traffic.buckets, [&](double bytes) { return model.large(ranks, bytes); });
    // Backward, half of the compute, hides buckets, but never the last one.
    const double exposed = std::max(model.large(ranks, traffic.buckets.back()), all - c / 2);
    fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.1f} |\n", ranks,
               1e3 * c, 1e3 * flat, 1e3 * tree, 1e3 * grouped, 1e3 * exposed,
               1e3 * (c + flat + exposed), 1e3 * (c + grouped + exposed));
  }
}

void run(const ProcessGroup& group) {
  const Model model = measure_model(group);
  Step alone{ProcessGroup()}, together(group);
  const ProcessGroup aside = group.split(0);
  distributed::StragglerMonitor monitor(group);
  const auto [compute, step] = step_seconds(alone, together, aside);
  const auto waited = monitor.report().waited_seconds;
  if (group.rank() == 0) {
    const double ranks = group.size();
    const double mean_waited = std::reduce(waited.begin(), waited.end()) / ranks / all_steps;
    const Traffic traffic = traffic_of(together);
    print_this_world(model, traffic, group.size(),
                     {.compute = compute, .step = step, .waited = mean_waited});
    print_predictions(model, traffic, compute / model.sharing(ranks));
  }
  measure_overlap(group);
}

}  // namespace
}  // namespace tutti::benchmarks

int main() {
  using namespace tutti;
  const ProcessGroup group = ProcessGroup::from_environment();
  if (group.size() < 2) {
    fmt::print(stderr,
               "scaling: expected at least 2 ranks, got 1; run it as mpirun -n 2 scaling\n");
    return 2;
  }
  set_num_threads(1);
  std::ifstream load("/proc/loadavg");
  std::string line;
  std::getline(load, line);
  if (group.rank() == 0)
    fmt::print("{} ranks, backend {}, load {}\n", group.size(), group.backend(), line);
  benchmarks::run(group);
}
