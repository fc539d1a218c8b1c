// Measures what a training step costs on n ranks. The program measures the parameters of the model
// in benchmarks/results/scaling.md (compute, latency and bandwidth of the collectives inside a host
// and between hosts), predicts from them the collectives of this world and the step of a ResNet-20
// with SyncBatchNorm and gradient buckets, here and on more ranks, and measures both, too. Then it
// measures whether a large all-reduce overlaps with compute. Run it under a launcher: mpirun -n 2
// scaling. TUTTI_RANKS_PER_HOST=2 mpirun -n 4 scaling emulates two hosts.
#include "timing.h"

#include <fmt/format.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/group_info.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
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

// The times of small and of large all-reduces.
struct Lines {
  Line small, large;
};

// Ranks on hosts that have so many each.
struct Layout {
  double ranks = 1, per_host = 1;

  double in_host() const { return std::min(ranks, per_host); }
  double hosts() const { return std::max(1.0, ranks / per_host); }
  double steps() const { return std::ceil(std::log2(hosts())); }
};

// The model of benchmarks/results/scaling.md. Its parameters are those of one message.
class Model {
 public:
  // The all-reduces of a group of `ranks` on one host and of one of `hosts` ranks, each on a host
  // of its own. Where there is no such group (one rank, one host), the other one's messages are
  // taken.
  Model(int ranks, const Lines& in_host, int hosts, const Lines& between)
      : cores_(static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN))) {
    // In a host a small all-reduce is n - 1 messages with all of the data. A large one is 3 (n - 1)
    // messages (fingerprints, scatter, gather) and 2 (n - 1) / n of the data.
    if (ranks > 1) {
      const double peers = ranks - 1;
      small_ = {in_host.small.latency / peers, in_host.small.per_byte / peers};
      large_ = {in_host.large.latency / (3 * peers), in_host.large.per_byte * ranks / (2 * peers)};
    }
    // Between hosts it is 2 log2 of the hosts messages, a large one 2 (H - 1) / H of the data.
    if (hosts > 1) {
      const double messages = 2 * std::ceil(std::log2(hosts));
      between_small_ = {between.small.latency / messages, between.small.per_byte / messages};
      between_large_ = {between.large.latency / messages,
                        between.large.per_byte * hosts / (2.0 * (hosts - 1))};
    }
    if (hosts == 1) between_small_ = small_, between_large_ = large_;
    if (ranks == 1) small_ = between_small_, large_ = between_large_;
  }
  // What n - 1 messages would cost at any number of hosts.
  double flat(double ranks, double bytes) const {
    return (ranks - 1) * (small_.latency + small_.per_byte * bytes);
  }
  // Several hosts: the data goes to the leader and comes back.
  double small(const Layout& at, double bytes) const {
    if (at.hosts() == 1) return flat(at.ranks, bytes);
    return 2 * flat(at.in_host(), bytes) +
           2 * at.steps() * (between_small_.latency + between_small_.per_byte * bytes);
  }
  // Several hosts: each rank of a host carries its part of the data to the others.
  double large(const Layout& at, double bytes) const {
    const double n = at.in_host(), hosts = at.hosts();
    return 3 * (n - 1) * large_.latency + 2 * (n - 1) / n * large_.per_byte * bytes +
           2 * at.steps() * between_large_.latency +
           2 * (hosts - 1) / hosts * between_large_.per_byte * bytes / n;
  }
  // Returns the time of the algorithm that the MPI backend chooses.
  double all_reduce(const Layout& at, double bytes) const {
    return bytes <= static_cast<double>(
                        distributed::mpi::inline_limit(static_cast<int>(at.in_host())))
               ? small(at, bytes)
               : large(at, bytes);
  }
  // Returns how many ranks share a core of this host.
  double sharing(double ranks) const { return std::max(1.0, ranks / cores_); }
  std::string parameters() const {
    const auto text = [](const Line& line) {
      return fmt::format("{:.1f} us + {:.3f} ns/byte", 1e6 * line.latency, 1e9 * line.per_byte);
    };
    return fmt::format("a message in a host: small {}, large {}; between hosts: small {}, large {}",
                       text(small_), text(large_), text(between_small_), text(between_large_));
  }

 private:
  Line small_, large_, between_small_, between_large_;
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

constexpr std::int64_t small_sizes[] = {64, 1024, 4096, 16384, 32768, 65536};
constexpr std::int64_t large_sizes[] = {256 << 10, 1 << 20, 4 << 20, 16 << 20};

int calls_of(std::int64_t bytes) { return bytes > 2 << 20 ? 4 : bytes > 64 << 10 ? 20 : 200; }

// Measures all-reduces of small and large sizes, and fits their times.
Lines measure_lines(const ProcessGroup& group) {
  std::vector<double> sizes, seconds;
  const auto measure = [&](std::int64_t bytes) {
    sizes.push_back(static_cast<double>(bytes));
    seconds.push_back(all_reduce_seconds(group, bytes, calls_of(bytes)));
  };
  for (const std::int64_t bytes : small_sizes) measure(bytes);
  const Line small = fit(sizes, seconds);
  sizes.clear();
  seconds.clear();
  for (const std::int64_t bytes : large_sizes) measure(bytes);
  return {small, fit(sizes, seconds)};
}

// Measures the parameters of the model in the first host and between the leaders of the hosts.
Model measure_model(const ProcessGroup& group, const distributed::HostLayout& layout) {
  const ProcessGroup host = group.split(static_cast<int>(layout.host)),
                     leaders = group.split(layout.is_leader() ? 0 : -1);
  Lines in_host, between;
  if (host.size() > 1) in_host = measure_lines(host);
  if (leaders.size() > 1) between = measure_lines(leaders);
  group.barrier();
  return Model(static_cast<int>(layout.own_host().size()), in_host,
               static_cast<int>(layout.hosts.size()), between);
}

// Prints the all-reduces of this world, measured and as the model predicts them.
void print_all_reduces(const ProcessGroup& group, const Model& model, const Layout& here) {
  const auto print = [&](std::int64_t bytes) {
    const double seconds = all_reduce_seconds(group, bytes, calls_of(bytes));
    if (group.rank() == 0)
      fmt::print("all-reduce of {:8} B: predicted {:8.1f} us, measured {:8.1f} us\n", bytes,
                 1e6 * model.all_reduce(here, static_cast<double>(bytes)), 1e6 * seconds);
  };
  for (const std::int64_t bytes : small_sizes) print(bytes);
  for (const std::int64_t bytes : large_sizes) print(bytes);
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

// `compute` and `step` are the measured seconds of a step on this number of ranks.
void print_this_world(const Model& model, const Traffic& traffic, const Layout& here,
                      double compute, double step) {
  const double statistics =
      sum_over(traffic.statistics, [&](double bytes) { return model.all_reduce(here, bytes); });
  const double last = model.large(here, traffic.buckets.back());
  fmt::print("parameters at {} ranks: {}\n", here.ranks, model.parameters());
  fmt::print(
      "a step at {} ranks: compute {:.1f} ms, {} statistics {:.2f} ms, last of {} buckets {:.2f} "
      "ms: predicted {:.1f} ms, measured {:.1f} ms\n",
      here.ranks, 1e3 * compute, traffic.statistics.size(), 1e3 * statistics,
      traffic.buckets.size(), 1e3 * last, 1e3 * (compute + statistics + last), 1e3 * step);
}

// Prints the predictions for hosts of 8 ranks. `compute` is that of a rank that has a core to
// itself.
void print_predictions(const Model& model, const Traffic& traffic, double compute) {
  fmt::print(
      "\nPredicted from these, ms; hosts of 8 ranks, one rank to a core from 8 ranks on\n"
      "| ranks | compute | statistics, n - 1 messages | statistics, host by host | statistics "
      "in groups of 8 | buckets, not hidden | step | step, groups of 8 |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int ranks : {2, 4, 8, 16, 64, 256, 1024, 4096}) {
    const double c = compute * (ranks < 8 ? model.sharing(ranks) : 1);
    const Layout all{static_cast<double>(ranks), 8}, host{all.in_host(), 8};
    const auto statistics = [&](const Layout& at) {
      return sum_over(traffic.statistics,
                      [&](double bytes) { return model.all_reduce(at, bytes); });
    };
    const double flat =
        sum_over(traffic.statistics, [&](double bytes) { return model.flat(ranks, bytes); });
    const double together = statistics(all), grouped = statistics(host);
    const double buckets =
        sum_over(traffic.buckets, [&](double bytes) { return model.large(all, bytes); });
    // Backward, half of the compute, hides buckets, but never the last one.
    const double exposed = std::max(model.large(all, traffic.buckets.back()), buckets - c / 2);
    fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.1f} |\n", ranks,
               1e3 * c, 1e3 * flat, 1e3 * together, 1e3 * grouped, 1e3 * exposed,
               1e3 * (c + together + exposed), 1e3 * (c + grouped + exposed));
  }
}

void run(const ProcessGroup& group) {
  const distributed::HostLayout layout(group.implementation()->info());
  const Layout here{static_cast<double>(group.size()), static_cast<double>(layout.most_ranks())};
  const Model model = measure_model(group, layout);
  print_all_reduces(group, model, here);
  Step alone{ProcessGroup()}, together(group);
  const ProcessGroup aside = group.split(0);
  const auto [compute, step] = step_seconds(alone, together, aside);
  if (group.rank() == 0) {
    const double ranks = group.size();
    const Traffic traffic = traffic_of(together);
    print_this_world(model, traffic, here, compute, step);
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
